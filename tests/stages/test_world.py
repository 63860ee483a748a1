"""The tasks of RL that the config makes."""

import json

import pytest

from configs import common
from jaxrl_single.stages import world as world_lib


def world(num_train_tasks, **env):
    config = common.base()
    config.env.update({"num_train_tasks": num_train_tasks, **env})
    return world_lib.make(config)


def test_rl_plays_the_first_tasks_and_demonstrations_may_be_of_all():
    everything, some = world(0), world(3)
    assert len(everything.rl_tasks) == len(everything.train_tasks) == len(some.train_tasks)
    assert list(some.rl_tasks) == [everything.train_tasks[i] for i in range(3)]
    assert len(some.eval_tasks) == len(everything.eval_tasks)


@pytest.mark.parametrize(("asked", "given"), [(0, 4), (2, 2), (4, 4), (9, 4)])
def test_tasks_of_a_file_are_counted_too(tmp_path, asked, given):
    for name, first in (("train", 0), ("eval", 50)):
        tasks = [{"question": f"{i}+1", "answer": f"{i + 1}"} for i in range(first, first + 4)]
        (tmp_path / name).write_text("".join(json.dumps(task) + "\n" for task in tasks))
    found = world(
        asked, tasks_file=str(tmp_path / "train"), eval_tasks_file=str(tmp_path / "eval")
    ).rl_tasks
    assert [task.question for task in found] == [f"{i}+1" for i in range(given)]
