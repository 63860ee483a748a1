"""Demonstrations: what watches them while they are played."""

import asyncio
import dataclasses
import importlib

import numpy as np
import pytest

from configs import common
from jaxrl_single import checkpoint, param_tree
from jaxrl_single.stages import build, initial, placement, waiting, warm_start
from jaxrl_single.stages import world as world_lib


@pytest.fixture(scope="module")
def world():
    config = common.base()
    config.env.tool_latency_s = 0.0
    return world_lib.make(config)


class Silent:
    name, gives_success = "silent", True

    async def reset(self, task, seed):
        await asyncio.sleep(1e9)

    async def close(self):
        pass


def test_they_come_in_their_order_and_with_signs_of_life(world):
    looks = []
    played = warm_start.demonstrations(
        world, count=5, mistake_rate=0.0, seed=0, look=lambda: looks.append(1)
    )
    assert [trajectory.ticket for trajectory in played] == list(range(5))
    assert looks


def test_a_stop_ends_them_although_the_environment_never_answers(world):
    def stopped():
        raise waiting.Stopped

    silent = dataclasses.replace(world, make_env=Silent)
    with pytest.raises(waiting.Stopped):
        warm_start.demonstrations(silent, count=2, mistake_rate=0.0, seed=0, look=stopped)


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(world, tmp_path):
    config = importlib.import_module("configs.tiny_sao").get_config("tiny")
    policy, _ = build.models(config, world.language.vocab_size)
    places = placement.make(config)
    demos = warm_start.demonstrations(world, count=16, mistake_rate=0.0, seed=0)

    def train(stop_at=None, unfinished=None):
        steps = []

        def report(step, metrics):
            steps.append(step)
            if step == stop_at:
                raise waiting.Stopped

        params = initial.policy_params(config, policy, places.parameters)
        pack = build.packer(config, num_trajectories=config.warm_start.batch_size)
        more = {"placement": places, "seed": 0, "report": report, "unfinished": unfinished}
        return warm_start.train(policy, params, demos, config.warm_start, pack, **more), steps

    whole, _ = train()
    unfinished = checkpoint.Checkpoints(tmp_path / "unfinished", keep=1)
    with pytest.raises(waiting.Stopped):
        train(stop_at=2, unfinished=unfinished)
    continued, steps = train(unfinished=unfinished)
    assert steps == [3, 4]
    for path, leaf in param_tree.flatten(whole).items():
        np.testing.assert_array_equal(param_tree.flatten(continued)[path], leaf, err_msg=path)
