"""The policy of the best evaluation stays, whatever comes after it."""

import numpy as np
import pytest

from jaxrl_single import workdir
from jaxrl_single.stages import best
from jaxrl_single.weights import base, filesystem


@pytest.fixture
def run(tmp_path):
    """(paths, weights, evaluate): evaluate publishes a version and records its evaluation."""
    paths, run_id = workdir.create(tmp_path / "run")
    weights = filesystem.FileWeights(paths.weights, run_id)
    keeper = best.Best(paths, weights, enabled=True)

    def evaluate(version, succeeded, tasks=8, stage="rl"):
        weights.publish(version, {"w": np.full((2,), version, np.float32)}, metadata={})
        outcomes = {f"t{i}": i in succeeded for i in range(tasks)}
        rate = sum(outcomes.values()) / tasks
        found = workdir.Eval(stage, version, version, tasks, rate, 0.0, 1.0, outcomes)
        workdir.record_eval(paths, found)
        keeper.consider(found)

    return paths, weights, evaluate


def kept(paths):
    store = best.open_store(paths)
    (version,) = store.versions()
    assert workdir.read_best(paths).policy_version == version
    np.testing.assert_array_equal(store.fetch(version)[0]["w"], [version, version])
    return version


def test_a_policy_that_was_better_stays(run):
    paths, weights, evaluate = run
    evaluate(0, {0, 1}, stage="warm_start")
    evaluate(4, {0, 1, 2, 3, 4})
    evaluate(8, set())
    weights.publish(9, {"w": np.zeros(2, np.float32)}, metadata={})
    weights.prune(1)
    assert weights.versions() == [9]
    assert kept(paths) == 4


def test_a_tie_goes_to_the_newer(run):
    paths, _, evaluate = run
    evaluate(0, {0, 1})
    evaluate(4, {2, 3})
    assert kept(paths) == 4


def test_evaluations_of_fewer_tasks_are_compared_on_what_both_tried(run):
    paths, _, evaluate = run
    evaluate(0, {0, 1, 2}, tasks=4)  # 0.75
    evaluate(4, {0, 1, 2, 3}, tasks=8)  # 0.5, but all of the first four
    assert kept(paths) == 4


def test_one_whose_evaluation_is_forgotten_is_the_best_no_more(run):
    paths, _, evaluate = run
    evaluate(0, {0}, stage="warm_start")
    evaluate(4, {0, 1, 2, 3})
    workdir.filter_jsonl(paths.evals, lambda record: record["step"] == 0)
    assert workdir.read_best(paths) is None
    evaluate(5, {0, 1})
    assert kept(paths) == 5


def test_a_version_may_come_again_under_its_number(run):
    paths, weights, evaluate = run
    evaluate(4, {0, 1})
    workdir.filter_jsonl(paths.evals, lambda record: False)
    weights.forget_after(-1)
    evaluate(4, {0})
    assert kept(paths) == 4


def test_weights_that_are_gone_leave_the_former_best(run):
    paths, weights, evaluate = run
    evaluate(0, {0, 1})
    gone = workdir.Eval("rl", 9, 9, 8, 1.0, 0.9, 1.0, {f"t{i}": True for i in range(8)})
    workdir.record_eval(paths, gone)
    best.Best(paths, weights, enabled=True).consider(gone)
    assert kept(paths) == 0
    with pytest.raises(base.MissingVersion):
        best.open_store(paths).take_only(9, weights)


def test_off_keeps_nothing(run):
    paths, weights, _ = run
    keeper = best.Best(paths, weights, enabled=False)
    keeper.consider(workdir.Eval("rl", 1, 1, 8, 1.0, 0.9, 1.0, {}))
    assert not paths.best.exists()
