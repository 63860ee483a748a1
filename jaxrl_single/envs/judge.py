"""Judging by programs that an answer could hang or abuse: in a process of their own, by the clock.

Libraries that compare mathematics hand what a model wrote to a symbolic parser, and `9**9**9` is
an answer like any other; some even evaluate it. So they run where the Python tool runs, behind the
same walls, and each answer in a child process that ends with it: what it does there may deceive the
judge about itself, and about no other answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jaxrl_single.envs.sandbox import isolation as isolation_lib
from jaxrl_single.envs.sandbox import limits as limits_lib
from jaxrl_single.envs.sandbox import pool as pool_lib

TIMEOUT_S = 10.0  # of a judgement
_START_S = 120.0  # of `source`, which may import a lot on a busy machine
_AT_ONCE = 2  # answers; the others wait, for a judgement takes milliseconds
_TRIES = 2  # the first may have met a bad moment of the machine
_SEALED = "import ctypes\nctypes.CDLL(None).prctl(4, 0)\n"  # no child may reach into this process
_JUDGEMENT = """
import json, os, sys, traceback
child = os.fork()
if not child:
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the way to the outside, above all
    try:
        print()
        print(float(score(*json.loads({arguments!r}))), flush=True)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1:
    raise RuntimeError("the judge failed")
"""
_LIMITS = limits_lib.Limits(memory_mb=4096, processes=8, cpu_s=3600, output_chars=4000)


class JudgeError(RuntimeError):
    """The judging program failed; the message holds its traceback."""


class Judge:
    """Calls one function in interpreters of its own."""

    def __init__(
        self,
        source: str,
        isolation: isolation_lib.Isolation,
        *,
        preload: tuple[str, ...] = (),
        timeout_s: float = TIMEOUT_S,
    ):
        """Starts nothing yet.

        Args:
          source: Python that defines `score(*arguments) -> float`; it may import this package.
          isolation: the walls around it.
          preload: modules that make `source` quick, loaded once.
          timeout_s: of a judgement, by the clock.
        """
        self._source = _SEALED + source
        self._timeout_s = timeout_s
        self._pool = pool_lib.Pool(isolation, _LIMITS, spares=0, preload=preload, own_code=True)
        self._idle: list[pool_lib.Interpreter] = []
        self._gate = pool_lib.Gate(_AT_ONCE)

    async def score(self, *arguments: Any) -> float:
        """The score of an answer, 0 to 1.

        An answer that takes too long, or whose process dies or gives no score, twice, is wrong: 0.

        Args:
          arguments: of `score`, JSON types.

        Raises:
          JudgeError: the function raised, or gave no number.
          sandbox.pool.SandboxError: there is no interpreter to be had.
        """
        code = _JUDGEMENT.format(arguments=json.dumps(arguments))
        for _ in range(_TRIES):
            async with self._gate.here():
                result = await self._run(code)
            if result.outcome == "error":
                raise JudgeError(f"{result.output}\n{result.error}")
            score = _number(result.output)
            if score is not None:
                return score
        return 0.0

    async def score_or_zero(self, given: Sequence[Any], right: Sequence[Any]) -> float:
        """The score of an answer that may be made to upset the judge: then it is wrong.

        Args:
          given: the arguments of `score` for the answer.
          right: those for an answer that the judge must be able to judge.

        Raises:
          JudgeError: the judge fails for that one, too, so the fault is its own.
        """
        try:
            return await self.score(*given)
        except JudgeError:
            await self.score(*right)
            return 0.0

    def close(self) -> None:
        """Ends the interpreters."""
        self._pool.close()

    async def _run(self, code: str) -> pool_lib.Result:
        while self._idle:
            result = await self._ask(self._idle.pop(), code)
            if result.outcome != "died":
                return result
            # It may have died while it waited, which says nothing about the answer.
        return await self._ask(await self._begin(), code)

    async def _ask(self, python: pool_lib.Interpreter, code: str) -> pool_lib.Result:
        try:
            result = await python.run(code, self._timeout_s)
        except BaseException:
            await python.close()
            raise
        if result.kept and result.outcome != "timeout":
            self._idle.append(python)
        else:
            await python.close()
        return result

    async def _begin(self) -> pool_lib.Interpreter:
        python = pool_lib.Interpreter(self._pool, seed=0)
        result = await python.run(self._source, _START_S)
        if result.outcome != "done":
            await python.close()
            raise JudgeError(f"the judge can't be started: {result.outcome} {result.error}")
        return python


def _number(output: str) -> float | None:
    """The last line, whatever libraries print before; None where it is no score, 0 to 1."""
    try:
        score = float(output.strip().rpartition("\n")[2])
    except ValueError:
        return None
    return score if 0.0 <= score <= 1.0 else None
