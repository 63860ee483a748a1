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


def evaluated(paths, before, after):
    """Records both evaluations of 60 tasks, of which the first so many succeed."""
    for stage, step, succeeded in (("warm_start", 0, before), ("final", 40, after)):
        outcomes = {f"t{i}": i < succeeded for i in range(60)}
        rate = succeeded / 60
        workdir.record_eval(
            paths, workdir.Eval(stage, step, step, 60, rate, rate - 0.1, rate + 0.1, outcomes)
        )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (24, 54, "better than before RL: +0.500 (+0.3"),
        (24, 0, "WORSE than before RL: -0.400 (-0."),
        (24, 26, "unchanged by RL, as far as these tasks can tell: +0.033 ("),
    ],
)
def test_the_verdict_compares_the_same_tasks(paths, before, after, words):
    evaluated(paths, before, after)
    (verdict,) = [line for line in summary.text(paths).splitlines() if "Verdict" in line]
    assert verdict.startswith(f"Verdict: {words}")
    gained, lost = max(0, after - before), max(0, before - after)
    assert verdict.endswith(f"on the same 60 tasks, {gained} gained and {lost} lost")


def test_alarms_are_listed_and_name_the_cause_of_a_loss(paths):
    evaluated(paths, 24, 0)
    metrics = writer.MetricsWriter(paths, "rl")
    for step in range(1, 31):
        wide = -8.0 if 12 <= step < 16 else -0.1
        good = 0.4 if step < 14 else 0.0
        ratios = {"policy/log_ratio_q05": wide, "policy/log_ratio_q95": 0.2}
        metrics.write(step, {**ratios, "episode/success": good, "episode/reward": good})
    metrics.close()
    text = summary.text(paths)
    assert "likely cause: the learning rate is too high" in text
    assert "what to try: lower policy_optimizer.learning_rate" in text
    assert "  ratios_wide, RL steps 14 to 15: the middle 90 %" in text
    assert "  no_success, since RL step 23: no episode has succeeded" in text


def test_evaluations_without_outcomes_have_no_verdict(paths):
    finished(paths)
    assert "Verdict" not in summary.text(paths)


def test_the_best_version_is_named_with_its_place(paths):
    evaluated(paths, 24, 0)
    paths.best.mkdir()
    workdir.record_best(paths, workdir.read_evals(paths)[0])
    text = summary.text(paths)
    assert "Best: version 0, RL step 0, 0.400 (0.300 to 0.500), 60 tasks, is kept in" in text
    assert f"--from={paths.root} --version=best --to=DIR" in text
