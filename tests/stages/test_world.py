"""The tasks of RL that the config makes."""

import datetime
import json
import pathlib
import shutil

import pytest

from configs import common
from jaxrl_single import workdir
from jaxrl_single.stages import world as world_lib

CHAT = pathlib.Path(__file__).parent.parent / "data" / "golden" / "chat"


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


def test_every_day_of_a_run_shows_the_day_on_which_it_began(tmp_path):
    shutil.copytree(CHAT, tmp_path / "chat")
    template = "{{ strftime_now('%Y-%m-%d') }} {{ messages[-1].content }}"
    (tmp_path / "chat" / "chat_template.jinja").write_text(template)
    paths, _ = workdir.create(tmp_path / "run")
    run = workdir.read_json(paths.run)
    workdir.write_json(paths.run, run | {"started": 86399.0})  # the last second of 1 January 1970
    config = common.base()
    config.model.path = str(tmp_path / "chat")
    made = world_lib.make(config, workdir.began(paths))
    assert workdir.began(paths).date() == datetime.date(1970, 1, 1)
    asked = made.language.dialogue().prompt("the cat")
    assert made.text.decode(asked).startswith("1970-01-01")
    assert made.text.render([{"role": "user", "content": "the cat"}]) == asked
