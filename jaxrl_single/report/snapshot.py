"""What the files of a workdir say about a run at this moment. No jax; reads, never writes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import pathlib
import statistics
from typing import Any

from jaxrl_single import workdir
from jaxrl_single.metrics import alarms as alarms_lib

_RECENT = 20  # steps that the time left is judged by


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A moment of a run.

    Attributes:
      status: the newest status.
      metrics: the newest line of metrics.jsonl of the present stage; {} before the first.
      evaluations: all of them, in order.
      alarms: those of RL so far.
      seconds_left: of the present stage, by the median of the last steps; None = unknown.
    """

    status: workdir.Status
    metrics: dict[str, Any]
    evaluations: tuple[workdir.Eval, ...]
    alarms: tuple[alarms_lib.Raised, ...]
    seconds_left: float | None


class Reader:
    """Takes snapshots; reads only what has been added to metrics.jsonl since the last one."""

    def __init__(self, paths: workdir.Workdir):
        self._paths = paths
        self._metrics = Tail(paths.metrics)
        self._newest: dict[str, dict[str, Any]] = {}
        self._recent: dict[str, collections.deque[tuple[int, float]]] = {}
        self._alarms = alarms_lib.Watcher()

    def snapshot(self) -> Snapshot | None:
        """None before the first status.

        Raises:
          workdir.BrokenFile: a file of the workdir is broken.
        """
        status = workdir.read_status(self._paths)
        if status is None:
            return None
        for record in self._metrics.new():
            self._take(record)
        return Snapshot(
            status=status,
            metrics=self._newest.get(status.stage, {}),
            evaluations=tuple(workdir.read_evals(self._paths)),
            alarms=tuple(self._alarms.raised()),
            seconds_left=self._seconds_left(status),
        )

    def _take(self, record: dict[str, Any]) -> None:
        stage, step = record["stage"], record["step"]
        recent = self._recent.setdefault(stage, collections.deque(maxlen=_RECENT))
        if recent and step <= recent[-1][0]:  # the run went back to a checkpoint
            recent.clear()
        recent.append((step, record["time"]))
        self._newest[stage] = record
        if stage == "rl":
            self._alarms.take(record)

    def _seconds_left(self, status: workdir.Status) -> float | None:
        points = list(self._recent.get(status.stage, ()))
        paces = [
            (after[1] - before[1]) / (after[0] - before[0])
            for before, after in itertools.pairwise(points)
        ]
        if not paces:
            return None
        # The median: a pause between two starts, or a compilation, is not the pace of the run.
        return max(0, status.num_steps - status.step) * statistics.median(paces)


class Tail:
    """The complete lines that were added to a JSONL file since the last look."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self._number = 0

    def new(self) -> list[dict[str, Any]]:
        """All lines again when the file was replaced or cut, as at a resume."""
        try:
            with open(self._path, "rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self._inode, self._offset, self._number = stat.st_ino, 0, 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        records = []
        for line in complete.splitlines():
            self._number += 1
            records.append(workdir.parse_line(line, self._path, self._number))
        return records
