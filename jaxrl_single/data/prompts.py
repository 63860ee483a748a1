"""The order of the training tasks: shuffled, endless, and resumable exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import grain

from jaxrl_single import types

_MAX_SKIPS = 1000  # so that weights of 0 everywhere do not hang the trainer


class TaskIterator:
    """Draws tasks without end; every epoch holds each task once, in another order.

    The order is a function of (seed, position), so the position is all there is to save.
    """

    def __init__(self, tasks: Sequence[types.Task], *, seed: int, shuffle: bool = True):
        """Begins at the first task of the order.

        Args:
          tasks: random access; may be large and computed on demand.
          seed: of the order, 0 <= seed < 2**32.
          shuffle: False keeps the order of `tasks`.

        Raises:
          ValueError: there are no tasks.
        """
        if not len(tasks):
            raise ValueError("there are no tasks to train on")
        dataset = grain.MapDataset.source(tasks)
        self._dataset = (dataset.shuffle(seed=seed) if shuffle else dataset).repeat()
        self._order = {"num_tasks": len(tasks), "seed": seed, "shuffle": shuffle}
        self._seed = seed
        self._position = 0
        self._weight: Callable[[types.Task], float] | None = None

    def prefer(self, weight: Callable[[types.Task], float]) -> None:
        """From now on tasks come in proportion to their weights: others are skipped in the order.

        Whether a task is skipped is a function of (seed, position, its weight). The weights are not
        part of the position: give them again after `restore`.

        Args:
          weight: of a task, in [0, 1]; the chance to be taken when its turn comes.
        """
        self._weight = weight

    def next(self) -> types.Task:
        """The next task; after _MAX_SKIPS skipped ones, whatever is next."""
        for _ in range(_MAX_SKIPS):
            task, position = self._dataset[self._position], self._position
            self._position += 1
            if self._weight is None:
                break
            if random.Random(f"{self._seed}/{position}").random() < self._weight(task):
                break
        return task

    def state(self) -> dict[str, Any]:
        """What `restore` needs, in JSON types."""
        return {"position": self._position, **self._order}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises:
          ValueError: it was taken from another order (other number of tasks, seed or shuffling).
        """
        other = {key: state.get(key) for key in self._order}
        if other != self._order:
            raise ValueError(
                f"the saved position belongs to tasks with {other}, these have {self._order}; "
                "restore with the same tasks and seed, or begin a new workdir"
            )
        self._position = state["position"]
