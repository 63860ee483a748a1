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
        self._options = dict(options)
        self._isolation = isolation
        self._judges: dict[int, judge.Judge] = {}  # by the seed of the dataset; a run has one

    async def __call__(self, task: types.Task, answer: str) -> float:
        """0 to 1.

        Raises:
          ValueError: the task is of another dataset.
          judge.JudgeError: the dataset's own judgement fails for the right answer, too.
        """
        if task.data.get("dataset") != self._name:
            raise ValueError(f"the task is not of the dataset {self._name!r}")
        judged_by = self._judge(task.data.get("seed", 0))
        place = task.data["place"]
        return await judged_by.score_or_zero((place, answer), (place, task.answer))

    def close(self) -> None:
        """Ends the judges."""
        for one in self._judges.values():
            one.close()

    def _judge(self, seed: int) -> judge.Judge:
        if seed not in self._judges:
            options = self._options | {"seed": seed}
            self._judges[seed] = judge.Judge(
                "from jaxrl_single.envs import reasoning_gym_tasks\n"
                f"score = reasoning_gym_tasks.Dataset({self._name!r}, {options!r}).score",
                self._isolation,
                preload=("reasoning_gym",),
            )
        return self._judges[seed]


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
        """0 or 1; `judge.JudgeError` when the judgement fails for the right answer, too."""
        return await self._judge.score_or_zero((task.answer, answer), (task.answer, task.answer))

    def close(self) -> None:
        """Ends the judge."""
        self._judge.close()


def _decimal(text: str) -> decimal.Decimal | None:
    try:
        value = decimal.Decimal(text.strip().replace(",", ""))
    except decimal.InvalidOperation:
        return None
    return value if value.is_finite() else None
