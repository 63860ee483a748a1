"""What stays of a run, through checkpoints, deaths and the bound."""

import logging

import numpy as np
import pytest
import rollouts_lab as lab

from jaxrl_single import evidence, store, workdir
from jaxrl_single.stages import keeping


def steps(directory, split="train"):
    return {folder.name: len(list(folder.iterdir())) for folder in store.kept(directory, split)}


def play(made, number):
    """One step of training: four trajectories and the next version."""
    made.top_up(purpose="rl")
    made.take(4, purpose="rl", step=number)
    made.publish(lab.PARAMS, step=number)


@pytest.fixture
def run(tmp_path):
    rule = keeping.Rule("every_nth", 2)
    made, _ = lab.make(tmp_path, [lab.task(i) for i in range(8)], keep=rule)
    made.publish(lab.PARAMS, step=0)
    return made


def test_every_nth_step_and_all_evaluations_stay_once_covered(run, tmp_path):
    directory = tmp_path / "trajectories"
    for number in (1, 2, 3, 4):
        play(run, number)
    run.request_evaluation("rl@4", num_tasks=3, version=run.version)
    run.take_evaluation("rl@4", wait=True)
    run.request_evaluation("gate@0", num_tasks=2, version=run.version, series="gate")
    run.take_evaluation("gate@0", wait=True)
    assert steps(directory) == {}  # no checkpoint covers them yet
    run.delete_covered()
    assert steps(directory) == {"00000002-rl": 4, "00000004-rl": 4}
    assert steps(directory, "eval") == {"00000004-rl": 3}
    assert store.files(directory, "eval") == []
    found = [store.decode(path.read_bytes()) for path in store.all_files(directory, "train")]
    assert len(found) == 8 + len(store.files(directory, "train"))


def test_a_death_between_checkpoint_and_move_loses_nothing(run, tmp_path):
    play(run, 1)
    play(run, 2)
    saved = run.state()
    play(run, 3)  # after the checkpoint, and lost with the process
    again, _ = lab.make(tmp_path, [lab.task(i) for i in range(8)], keep=run.settings.keep)
    again.restore(saved, used=())
    assert steps(tmp_path / "trajectories") == {"00000002-rl": 4}
    play(again, 3)
    play(again, 4)
    again.delete_covered()
    assert steps(tmp_path / "trajectories") == {"00000002-rl": 4, "00000004-rl": 4}


def test_nothing_stays_by_default_of_the_rule(tmp_path):
    made, _ = lab.make(tmp_path, [lab.task(i) for i in range(8)])
    made.publish(lab.PARAMS, step=0)
    play(made, 10)
    made.delete_covered()
    assert not (tmp_path / "trajectories" / "kept").exists()


def facts(step):
    return evidence.Facts("run", step, step - 1, "sao", False, ())


def sample(paths, step, numbers=25_000):
    arrays = {"tokens": np.zeros(numbers, np.int32)}  # 100 kB
    evidence.write(paths.samples, evidence.Evidence(facts(step), arrays))


def test_the_oldest_steps_go_first_and_it_is_said_once(tmp_path, caplog):
    paths, _ = workdir.create(tmp_path)
    for step in (9, 10, 11):
        sample(paths, step)
    folder = paths.trajectories / "kept" / "train" / "00000009-rl"
    folder.mkdir(parents=True)
    (folder / "x").write_bytes(bytes(100_000))
    keeper = keeping.Keeper(paths, max_gb=3.5e-4)
    with caplog.at_level(logging.WARNING):
        keeper.bound()
        assert list(evidence.files(paths.samples)) == [10, 11]
        assert not folder.exists()
        sample(paths, 12)
        sample(paths, 13)
        keeper.bound()
    assert list(evidence.files(paths.samples)) == [11, 12, 13]
    assert [record.getMessage().count("max_gb=0.00035") for record in caplog.records] == [1]


def test_a_run_that_goes_back_forgets_what_came_after(tmp_path):
    paths, _ = workdir.create(tmp_path)
    for step in (2, 4):
        sample(paths, step)
        (paths.trajectories / "kept" / "eval" / f"{step:08d}-rl").mkdir(parents=True)
    keeper = keeping.Keeper(paths, max_gb=1)
    keeper.forget_after(2)
    assert list(evidence.files(paths.samples)) == [2]
    assert steps(paths.trajectories, "eval") == {"00000002-rl": 0}
    keeper.forget_after(-1)
    assert evidence.files(paths.samples) == {}
