"""An environment that tosses a coin for the reward, so that a random policy has something to learn.

The calculator gives a random policy nothing but zeros, and most algorithms then do nothing.
"""

import dataclasses

from jaxrl_single.envs import base
from jaxrl_single.envs import table as env_table

TURNS = 2


class CoinEnv:
    """Two turns, each of which is paid 0 or 1/2 by a coin of the ticket, whatever was done."""

    name = "coin"
    gives_success = True

    async def reset(self, task, seed):
        self._coin = seed // 256 % 2  # the seed is 256 x number of the ticket + attempt
        self._turn = 0
        return task.question

    async def step(self, action):
        self._turn += 1
        last = self._turn == TURNS
        info = {"success": bool(last and self._coin)}
        return base.StepResult("" if last else "1", self._coin / TURNS, terminated=last, info=info)

    async def close(self):
        pass


def factory():
    calculator = env_table.get("calculator")
    return dataclasses.replace(calculator, make_env=lambda section: CoinEnv)
