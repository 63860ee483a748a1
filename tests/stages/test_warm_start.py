"""Demonstrations: what watches them while they are played."""

import asyncio
import dataclasses

import pytest

from configs import common
from jaxrl_single.stages import waiting, warm_start
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
