"""Whole runs whose trainer replays the experts that the sampler chose."""

import pytest

from tests.e2e import runs

pytestmark = pytest.mark.long


@pytest.mark.parametrize("override", ["mode=sync", "rollout.client=http"])
def test_a_run_trains_and_is_scored_with_the_samplers_experts(tmp_path, override):
    """Each batch and each evaluation needs them: without, packing would have ended the run."""
    workdir = tmp_path / "run"
    runs.run(workdir, override, "sampler.record_experts=True", "eval.num_tasks=8")
    assert runs.rl_steps(workdir) == [1, 2, 3, 4]
    written = runs.lines(workdir / "metrics.jsonl")
    scored = [line for line in written if line["stage"] == "eval"]
    assert len(scored) == 3  # of the warm start, on the way, and of the end
    assert all(line["mismatch/tokens"] > 0 for line in scored)
    assert max(line["mismatch/max"] for line in scored) < 2e-5
