"""Judging an answer: against the task's own, or by the rules of the dataset it comes from."""

from __future__ import annotations

import decimal

from jaxrl_single import types
from jaxrl_single.envs import reasoning_gym_tasks

NAMES = ("dataset", "exact", "number")


async def exact(task: types.Task, answer: str) -> float:
    """1 when the texts are equal but for blanks at the ends and upper or lower case."""
    return float(answer.strip().casefold() == task.answer.strip().casefold())


async def number(task: types.Task, answer: str) -> float:
    """1 when both are decimal numbers of the same value: "1,000", "1000.0" and " 1000" are."""
    given, right = _decimal(answer), _decimal(task.answer)
    return float(given is not None and given == right)


class DatasetCheck:
    """The score that the dataset of a task gives."""

    def __init__(self, dataset: reasoning_gym_tasks.Dataset):
        self._dataset = dataset

    async def __call__(self, task: types.Task, answer: str) -> float:
        """0 to 1.

        Raises:
          ValueError: the task is of another dataset.
        """
        if task.data.get("dataset") != self._dataset.name:
            raise ValueError(f"the task is not of the dataset {self._dataset.name!r}")
        return self._dataset.score(task.data["place"], answer)


def _decimal(text: str) -> decimal.Decimal | None:
    try:
        value = decimal.Decimal(text.strip().replace(",", ""))
    except decimal.InvalidOperation:
        return None
    return value if value.is_finite() else None
