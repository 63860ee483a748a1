"""Environments that fail, for the tests: --config.env.name=tests.e2e.bad_envs:NAME."""

import asyncio
import dataclasses
import os
import sys
import time
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


def throws_anything():
    """In RL, one kind of fault after the other in every fourth episode; the others go well."""
    return dataclasses.replace(
        table.get("calculator"), make_env=lambda section: lambda: _Thrower(section)
    )


class _Thrower(calculator.Calculator):
    def __init__(self, section):
        super().__init__(
            tool_enabled=True,
            tool_latency_s=0.0,
            tool_latency_spread=section["tool_latency_spread"],
        )

    async def reset(self, task, seed):
        number = int(task.id.rpartition("/")[2])
        self._fault = (
            number // 4 if number % 4 == 3 and number < 500_000 and "train" in task.id else None
        )
        return await super().reset(task, seed)

    async def step(self, action):
        if self._fault is None:
            return await super().step(action)
        faults = (
            lambda: sys.exit(3),
            lambda: _throw(KeyboardInterrupt()),
            lambda: _throw(asyncio.CancelledError()),
            lambda: asyncio.current_task().cancel(),
            lambda: base.StepResult("", 1e39, terminated=True),
            lambda: base.StepResult("", 1.0, terminated=True, role=object()),
            lambda: _throw(ValueError("\ud800" * 1_000_000)),
            lambda: time.sleep(1000),
        )
        fault = faults[self._fault % len(faults)]
        asyncio.get_running_loop().create_task(_exits())
        return fault()


async def _exits():
    raise SystemExit(3)


def _throw(error):
    raise error
