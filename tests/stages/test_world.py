"""The tasks of RL that the config makes, and how long their episodes may be."""

import datetime
import json
import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import common
from jaxrl_single import types, workdir
from jaxrl_single.data import packing
from jaxrl_single.stages import world as world_lib
from tests import trajectory_maker

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


def of_segments(ticket, lengths):
    segment_ids = np.repeat(1 + np.arange(len(lengths)), lengths).astype(np.int32)
    length = len(segment_ids)
    mask = np.diff(segment_ids, prepend=0) == 0
    versions = np.where(mask, 3, types.NOT_SAMPLED).astype(np.int32)
    return trajectory_maker.make_trajectory(
        ticket, length=length, segment_ids=segment_ids, action_mask=mask, policy_versions=versions
    )


def split(rng, length, row_length):
    """Segments of one episode, a little more than half a row many of them: two share no row."""
    lengths = []
    while (left := length - sum(lengths)) > 0:
        low = rng.choice([1, row_length // 2 + 1])
        lengths.append(min(left, int(rng.integers(low, row_length + 1))))
    return lengths


@settings(deadline=None, max_examples=300)
@given(
    seed=st.integers(0, 2**32 - 1),
    minibatches=st.integers(1, 8),
    size=st.integers(1, 24),
    rows=st.integers(1, 12),
)
def test_episodes_of_any_allowed_length_fit_a_batch_and_each_minibatch(
    seed, minibatches, size, rows
):
    rng = np.random.default_rng(seed)
    bucket = minibatches * max(rows, -(-size // minibatches))
    config = common.base()
    config.algorithm.num_minibatches = minibatches
    config.batch.update({"num_trajectories": size, "row_length": 16, "row_buckets": (bucket,)})
    config.warm_start.batch_size = 1
    most = world_lib.make(config).limits.max_episode_tokens
    assert most >= 16, "an episode of one row is always allowed"
    longest = [most if rng.random() < 0.8 else int(rng.integers(1, most + 1)) for _ in range(size)]
    packing.pack(
        [of_segments(i, split(rng, length, 16)) for i, length in enumerate(longest)],
        num_trajectories=size,
        row_length=16,
        rows_per_micro_batch=1,
        row_buckets=(bucket,),
        on_limit="terminal",
        num_minibatches=minibatches,
    )


def test_demonstrations_bound_the_length_of_episodes_too():
    config = common.base()
    config.batch.update({"num_trajectories": 8, "row_length": 10, "row_buckets": (64,)})
    config.warm_start.batch_size = 16
    assert world_lib.make(config).limits.max_episode_tokens == 20  # 4 rows: 3 pieces at most
    config.warm_start.batch_size = 64
    assert world_lib.make(config).limits.max_episode_tokens == 10


def test_every_day_of_a_run_shows_the_day_on_which_it_began(tmp_path):
    shutil.copytree(CHAT, tmp_path / "chat")
    template = "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %} {{ m.content }}{% endfor %}"
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
