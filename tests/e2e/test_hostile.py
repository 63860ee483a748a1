"""Runs whose environment throws whatever can be thrown: they go on, and count it."""

import json

import pytest

from tests.e2e import runs

FAULTS = ("env.name=tests.e2e.bad_envs:throws_anything", "env.step_timeout_s=1.0")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["sync", "local"])
def test_a_run_goes_on_whatever_its_environment_throws(tmp_path, mode):
    workdir = tmp_path / "run"
    text = runs.run(workdir, *FAULTS, f"mode={mode}", "env.num_train_tasks=0")
    assert "after 4 steps of RL" in text
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["stage"] == "rl"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert sum(line["errors/env"] for line in steps) > 0
    assert sum(line["errors/total"] for line in steps) > 3
    assert sum(line.get("sampler/restarts") or 0 for line in steps) == 0
