"""The last words of a run."""

import os

import pytest

from jaxrl_single import workdir
from jaxrl_single.metrics import writer
from jaxrl_single.report import summary
from jaxrl_single.supervise import identity


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


def finished(paths):
    for evaluation in (
        workdir.Eval("warm_start", 0, 1, 512, 0.412, 0.37, 0.455),
        workdir.Eval("rl", 25, 27, 128, 0.7, 0.6, 0.8),
        workdir.Eval("final", 50, 52, 512, 0.946, 0.923, 0.962),
    ):
        workdir.record_eval(paths, evaluation)
    metrics = writer.MetricsWriter(paths, "rl")
    common = {"time/step_s": 4.0, "time/train_s": 3.0, "time/wait_s": 0.5, "time/publish_s": 0.2}
    metrics.write(
        1,
        {
            **common,
            "staleness/mean": 1.0,
            "staleness/max": 2,
            "staleness/spans_versions": 0.0,
            "train/action_tokens": 300,
            "train/trajectories": 10,
            "keep/fraction": 1.0,
        },
    )
    metrics.write(
        2,
        {
            **common,
            "staleness/mean": 3.0,
            "staleness/max": 4,
            "staleness/spans_versions": 0.5,
            "train/action_tokens": 100,
            "train/trajectories": 30,
            "keep/fraction": 0.9,
        },
    )
    metrics.close()
    counts = {"written": 50, "trained": 40, "dropped_stale": 3, "errors": 2, "pending": 5}
    workdir.write_status(paths, workdir.Status("done", 2, 2, trajectories=counts))
    children = {
        "trainer": {**identity.describe(os.getpid()), "restarts": 0},
        "sampler": {"pid": 77, "start_time": "1", "restarts": 2},
    }
    workdir.write_json(paths.processes, {"parent": {"pid": 1}, "children": children})


def test_it_says_what_was_reached_and_how(paths):
    finished(paths)
    text = summary.text(paths)

    assert workdir.run_id_of(paths) in text
    assert "after warm start         0.412 (0.370 to 0.455), 512 tasks, version 1" in text
    assert "after 50 steps of RL     0.946 (0.923 to 0.962), 512 tasks, version 52" in text
    assert "0.700" not in text  # the way there is in evals.jsonl
    assert f"trainer: process {os.getpid()}, sampler: process 77 (restarted 2 times)" in text
    # (300 x 1 + 100 x 3) / 400 tokens; (10 x 0 + 30 x 0.5) / 40 trajectories.
    assert "staleness 1.50 versions in the mean, 4 at most; 37.5 % of the trajectories" in text
    assert "97.5 % of the tokens kept" in text
    assert "50 written, 40 trained, 3 dropped as too stale, 2 errors" in text
    assert "8 s, of it 75 % training, 12 % waiting for trajectories, 5 % publishing" in text


def test_it_says_where_to_look(paths):
    finished(paths)
    text = summary.text(paths)
    for path in (paths.tensorboard, paths.metrics, paths.logs):
        assert str(path) in text
    assert f"python -m jaxrl_single.run.inspect {paths.root}" in text


def test_a_run_without_rl_has_a_summary(paths):
    workdir.record_eval(paths, workdir.Eval("warm_start", 0, 1, 512, 0.4, 0.3, 0.5))
    text = summary.text(paths)
    assert "Asynchrony" not in text
    assert text.count("tasks, version") == 1


def test_a_run_in_one_process_says_so(paths):
    finished(paths)
    paths.processes.unlink()
    assert "one process (mode sync)" in summary.text(paths)
