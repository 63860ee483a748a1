"""Writes metrics to metrics.jsonl and to TensorBoard files."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorboardX

from jaxrl_single import workdir
from jaxrl_single.metrics import names


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
        try:
            self._board = tensorboardX.SummaryWriter(
                str(paths.tensorboard / stage),
                purge_step=self._last + 1,
                flush_secs=10,
                # Two starts within a second would otherwise share a file name.
                filename_suffix=f".{os.getpid()}.{self._last + 1}",
            )
        except OSError as error:
            raise workdir.CannotWrite(paths.tensorboard, error) from error

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
        for name, value in values.items():
            if math.isfinite(value):
                self._board.add_scalar(name, value, step)
        for name, (edges, counts) in bins.items():
            self._add_histogram(name, edges, counts, step)

    def flush(self) -> None:
        """Makes TensorBoard's files complete; metrics.jsonl always is."""
        self._board.flush()

    def close(self) -> None:
        self._board.close()

    def _add_histogram(self, name: str, edges: list[float], counts: list[int], step: int) -> None:
        if not sum(counts):
            return
        limits = [*edges[1:], 2 * edges[-1] - edges[-2] if len(edges) > 1 else edges[-1] + 1]
        total = sum(edge * count for edge, count in zip(edges, counts, strict=True))
        squares = sum(edge**2 * count for edge, count in zip(edges, counts, strict=True))
        self._board.add_histogram_raw(
            name,
            min=edges[0],
            max=limits[-1],
            num=sum(counts),
            sum=total,
            sum_squares=squares,
            bucket_limits=limits,
            bucket_counts=counts,
            global_step=step,
        )


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
