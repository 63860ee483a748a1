"""Judging an answer: against the task's own, or by the rules of the dataset it comes from."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from typing import Any

from jaxrl_single import types
from jaxrl_single.envs import judge, math_answers
from jaxrl_single.envs.sandbox import isolation as isolation_lib

NAMES = ("dataset", "exact", "number", "math")


async def exact(task: types.Task, answer: str) -> float:
    """1 when the texts are equal but for blanks at the ends and upper or lower case."""
    return float(answer.strip().casefold() == task.answer.strip().casefold())


async def number(task: types.Task, answer: str) -> float:
    """1 when both are decimal numbers of the same value: "1,000", "1000.0" and " 1000" are."""
    given, right = _decimal(answer), _decimal(task.answer)
    return float(given is not None and given == right)


class DatasetCheck:
    """The score that the dataset of a task gives."""

    def __init__(self, name: str, options: Mapping[str, Any], isolation: isolation_lib.Isolation):
        """See `reasoning_gym_tasks.Dataset`; starts nothing yet.

        Args:
          isolation: of the process that judges, for some datasets evaluate the answer.
        """
        self._name = name
        self._judge = judge.Judge(
            "from jaxrl_single.envs import reasoning_gym_tasks\n"
            f"score = reasoning_gym_tasks.Dataset({name!r}, {dict(options)!r}).score",
            isolation,
            preload=("reasoning_gym",),
        )

    async def __call__(self, task: types.Task, answer: str) -> float:
        """0 to 1.

        Raises:
          ValueError: the task is of another dataset.
          judge.JudgeError: the dataset's own judgement failed.
        """
        if task.data.get("dataset") != self._name:
            raise ValueError(f"the task is not of the dataset {self._name!r}")
        return await self._judge.score(task.data["place"], answer)

    def close(self) -> None:
        """Ends the judge."""
        self._judge.close()


class MathCheck:
    """1 when an answer means the same as the task's, see math_answers.py."""

    def __init__(self, isolation: isolation_lib.Isolation):
        """Starts nothing yet; ValueError when the package math-verify is missing."""
        math_answers.load()
        self._judge = judge.Judge(
            "from jaxrl_single.envs import math_answers\nscore = math_answers.score",
            isolation,
            preload=(math_answers.PACKAGE,),
        )

    async def __call__(self, task: types.Task, answer: str) -> float:
        """0 or 1; `judge.JudgeError` when the judgement failed."""
        return await self._judge.score(task.answer, answer)

    def close(self) -> None:
        """Ends the judge."""
        self._judge.close()


def _decimal(text: str) -> decimal.Decimal | None:
    try:
        value = decimal.Decimal(text.strip().replace(",", ""))
    except decimal.InvalidOperation:
        return None
    return value if value.is_finite() else None
