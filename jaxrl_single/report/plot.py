"""Runs as a picture: success first, then further metrics, a colour for each run.

Needs matplotlib: pip install -e ".[plot]".
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxrl_single import workdir
from jaxrl_single.metrics import names

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib import axes as axes_lib
    from matplotlib import figure as figure_lib

METRICS = ("staleness/mean", "keep/fraction", "policy/entropy")
_TRAINED = "episode/success"  # beside it stand the evaluations


class CannotPlot(ValueError):
    """There is nothing to draw, or a metric has no such name; the message says which."""


def draw(
    roots: Sequence[pathlib.Path], *, metrics: Sequence[str] = METRICS, smooth: int = 10
) -> figure_lib.Figure:
    """One panel for success and one for each of `metrics`, over steps of RL.

    In the first, lines are the training episodes and points the held-out evaluations with their
    95 % intervals.

    Args:
      roots: workdirs, finished or not.
      metrics: names of `metrics/names.py` that RL steps have.
      smooth: lines are means over so many steps up to each one, >= 1.

    Raises:
      CannotPlot: an unknown metric, or a workdir without a step of RL.
      workdir.BrokenFile: metrics.jsonl or evals.jsonl of a run is not what it should be.
    """
    unknown = [name for name in metrics if not names.is_known(name)]
    if unknown:
        raise CannotPlot(f"unknown metrics {unknown}; metrics/names.py lists all")
    if smooth < 1:
        raise CannotPlot(f"smooth is {smooth}, must be at least 1")
    from matplotlib import figure as figure_lib

    panels = (_TRAINED, *metrics)
    figure = figure_lib.Figure(figsize=(4 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for number, (root, label) in enumerate(zip(roots, _labels(roots), strict=True)):
        paths, color = workdir.Workdir(root), f"C{number}"
        lines = [line for line in workdir.read_jsonl(paths.metrics) if line.get("stage") == "rl"]
        if not lines:
            raise CannotPlot(f"{root} holds no step of RL yet (metrics.jsonl)")
        for axis, name in zip(axes, panels, strict=True):
            _add_line(axis, lines, name, smooth, color=color, label=label)
        _add_evaluations(axes[0], workdir.read_evals(paths), color=color)
    for axis, name in zip(axes, panels, strict=True):
        axis.set(title=name, xlabel="step of RL")
        axis.grid(alpha=0.3)
    axes[0].set(title="success: training (line), held-out (points)", ylim=(0, 1.04))
    axes[0].legend(loc="lower right")
    return figure


def _labels(roots: Sequence[pathlib.Path]) -> list[str]:
    """Names that tell the runs apart: what follows the directory that holds all of them."""
    absolute = [pathlib.Path(root).absolute() for root in roots]
    common = os.path.commonpath([path.parent for path in absolute])
    return [str(path.relative_to(common)) for path in absolute]


def running_mean(values: Sequence[float], width: int) -> np.ndarray:
    """Of each value and the `width` - 1 before it; NaNs are passed over, and all-NaN gives NaN."""
    array = np.asarray(values, float)
    known = np.isfinite(array)
    sums, counts = np.cumsum(np.where(known, array, 0)), np.cumsum(known)
    for totals in (sums, counts):
        totals[width:] -= totals[:-width].copy()
    return np.divide(sums, counts, out=np.full(len(array), math.nan), where=counts > 0)


def _add_line(
    axis: axes_lib.Axes, lines: list[dict], name: str, smooth: int, *, color: str, label: str
) -> None:
    values = [math.nan if line.get(name) is None else line[name] for line in lines]
    steps = [line["step"] for line in lines]
    axis.plot(steps, running_mean(values, smooth), color=color, label=label)


def _add_evaluations(
    axis: axes_lib.Axes, evaluations: Sequence[workdir.Eval], *, color: str
) -> None:
    for found in evaluations:
        if found.success is None:  # all of its tasks were errors
            continue
        # Recorded ends may miss 0 and 1 by rounding, and matplotlib draws no negative lengths.
        around = [
            [max(0.0, found.success - found.ci_low)],
            [max(0.0, found.ci_high - found.success)],
        ]
        axis.errorbar(found.step, found.success, around, fmt="o", capsize=3, color=color)
