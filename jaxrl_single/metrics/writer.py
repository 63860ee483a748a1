"""Writes metrics to metrics.jsonl and to TensorBoard files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_single import workdir
from jaxrl_single.metrics import names, tensorboard


class MetricsWriter:
    """One line per step of a stage; a step appears once, however often the run was resumed.

    A line of metrics.jsonl is {"stage", "step", "time", and the metrics}, null where a value is
    not finite. TensorBoard gets one directory per stage, so that stages do not share a step axis.

    Args:
      paths: of the run.
      stage: "warm_start", "value_pretraining", "rl", "eval" ...
      resume_step: the step of the restored checkpoint: what an interrupted start has written of
        this stage after it is removed. None: all of this stage is removed, it begins anew.

    Raises:
      workdir.CannotWrite: the disk is full or not writable.
    """

    def __init__(self, paths: workdir.Workdir, stage: str, *, resume_step: int | None = None):
        self._path = paths.metrics
        self._stage = stage
        self._last = -1 if resume_step is None else resume_step
        workdir.filter_jsonl(
            self._path,
            lambda record: record.get("stage") != stage or record.get("step", 0) <= self._last,
        )
        self._board_path = paths.tensorboard / stage
        try:
            self._board = tensorboard.EventFile(self._board_path, first_step=self._last + 1)
        except OSError as error:
            raise workdir.CannotWrite(self._board_path, error) from error

    def write(
        self,
        step: int,
        scalars: Mapping[str, Any],
        histograms: Mapping[str, tuple[Sequence[float], Sequence[int]]] | None = None,
    ) -> None:
        """Writes the metrics of one step.

        Args:
          step: larger than the one before.
          scalars: numbers, or arrays with one element.
          histograms: by name (edges, counts): counts[i] values in [edges[i], edges[i + 1]), and
            the last bin is open, so there are as many edges as counts.

        Raises:
          names.UnknownMetric: not listed in metrics/names.py.
          ValueError: the step does not grow, or a value is no number.
          workdir.CannotWrite: the disk is full.
        """
        if step <= self._last:
            raise ValueError(f"{self._stage}: step {step} after step {self._last}; steps grow")
        values = {name: _number(name, value) for name, value in scalars.items()}
        bins = {name: _bins(name, *value) for name, value in (histograms or {}).items()}
        record = {"stage": self._stage, "step": step, "time": time.time(), **values}
        for name, (edges, counts) in bins.items():
            record[name] = {"edges": edges, "counts": counts}
        workdir.append_jsonl(self._path, record)
        self._last = step
        try:
            self._board.write(step, values, bins)
        except OSError as error:
            raise workdir.CannotWrite(self._board_path, error) from error

    def close(self) -> None:
        self._board.close()


def _number(name: str, value: Any) -> float:
    names.check(name)
    if name in names.HISTOGRAMS:
        raise ValueError(f"{name} is a histogram, not a number")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected one number, got {value!r}") from error


def _bins(
    name: str, edges: Sequence[float], counts: Sequence[int]
) -> tuple[list[float], list[int]]:
    names.check(name)
    if name not in names.HISTOGRAMS:
        raise ValueError(f"{name} is a number, not a histogram")
    if not len(edges) or len(edges) != len(counts):
        raise ValueError(f"{name}: {len(edges)} edges for {len(counts)} counts, expected as many")
    return [float(edge) for edge in edges], [int(count) for count in counts]
