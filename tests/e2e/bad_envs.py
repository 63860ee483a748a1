"""Environments that fail, for the tests: --config.env.name=tests.e2e.bad_envs:NAME."""

import dataclasses
import os
import traceback

from jaxrl_single.envs import base, calculator, table


class Broken(calculator.Calculator):
    """A calculator that fails at one point."""

    def __init__(self, where, error, **options):
        super().__init__(**options)
        self._where, self._error = where, error

    async def reset(self, task, seed):
        if self._where == "reset":
            raise self._error
        return await super().reset(task, seed)

    async def step(self, action):
        if self._where == "step":
            raise self._error
        if self._where == "reward":
            return base.StepResult(calculator.ERROR, reward=1.0)
        if self._where == "exit":
            try:
                raise self._error
            except RuntimeError:
                traceback.print_exc()
                os._exit(3)
        return await super().step(action)


def _spec(where, error):
    spec = table.get("calculator")
    # The demonstrations go well: the fault is one that RL meets first.
    return dataclasses.replace(spec, make_env=lambda section: lambda: _Late(where, error, section))


class _Late:
    """Behaves in demonstrations, whose tickets have the purpose of the warm start."""

    name = "calculator"

    def __init__(self, where, error, section):
        options = {k: section[k] for k in ("tool_enabled", "tool_latency_s", "tool_latency_spread")}
        self._good = calculator.Calculator(**options)
        self._bad = Broken(where, error, **options)
        self._env = self._good

    async def reset(self, task, seed):
        if int(task.id.rpartition("/")[2]) < 500_000:  # demonstrations come from the far end
            self._env = self._bad
        return await self._env.reset(task, seed)

    async def step(self, action):
        return await self._env.step(action)

    async def close(self):
        await self._env.close()


def raises_in_step():
    return _spec("step", ZeroDivisionError("this tool is broken"))


def raises_in_reward():
    return _spec("step", base.RewardError("this judge is broken"))


def raises_in_reset():
    return _spec("reset", FileNotFoundError("no such sandbox"))


def rewards_anything():
    return _spec("reward", None)


def kills_its_process():
    return _spec("exit", RuntimeError("this environment ends its process"))
