"""Which finished trajectories are trained: staleness at the moment of consumption.

staleness of a token = version of the trainer when it consumes the token - version of the weights
that sampled it, so the time in the queue counts. A trajectory is as stale as its oldest token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_single import types


@dataclasses.dataclass(frozen=True)
class Selection:
    """Trajectories split by the staleness bound, each in the order given."""

    fresh: list[types.Trajectory]
    stale: list[types.Trajectory]


@dataclasses.dataclass(frozen=True)
class StalenessStatistics:
    """Over the sampled tokens of some trajectories; NaN (max: 0) when there are none.

    Attributes:
      mean, maximum: policy versions.
      spans_versions: how many trajectories hold tokens of more than one version.
    """

    mean: float
    maximum: int
    spans_versions: int


@dataclasses.dataclass(frozen=True)
class LengthStatistics:
    """Action tokens of some trajectories. `counts[i]` of them have edges[i] <= length < edges[i+1].

    The last edge is open: what is longer counts in the last bin.
    """

    mean: float
    edges: tuple[int, ...]
    counts: tuple[int, ...]


def staleness(trajectory: types.Trajectory, *, trainer_version: int) -> int:
    """Of the oldest sampled token, in versions; 0 for scripted episodes, which never age.

    Raises:
      ValueError: a token is of a version that the trainer has not reached: not of this lineage.
    """
    if trajectory.source != "policy" or not trajectory.action_mask.any():
        return 0
    newest = int(trajectory.policy_versions[trajectory.action_mask].max())
    if newest > trainer_version:
        raise ValueError(
            f"trajectory {trajectory.run_id}/{trajectory.key} was sampled by version {newest}, the "
            f"trainer is at {trainer_version}; versions are never reused, so it belongs elsewhere"
        )
    return trainer_version - trajectory.oldest_version


def select(
    trajectories: Sequence[types.Trajectory], *, trainer_version: int, max_staleness: int
) -> Selection:
    """Splits by `staleness <= max_staleness`, asked at the moment of consumption."""
    selection = Selection(fresh=[], stale=[])
    for trajectory in trajectories:
        is_fresh = staleness(trajectory, trainer_version=trainer_version) <= max_staleness
        (selection.fresh if is_fresh else selection.stale).append(trajectory)
    return selection


def staleness_statistics(
    trajectories: Sequence[types.Trajectory], *, trainer_version: int
) -> StalenessStatistics:
    """Each sampled token counts once; scripted episodes do not count."""
    versions = [t.policy_versions[t.action_mask] for t in trajectories if t.source == "policy"]
    tokens = np.concatenate([np.zeros(0, np.int32), *versions])
    if not len(tokens):
        return StalenessStatistics(mean=float("nan"), maximum=0, spans_versions=0)
    return StalenessStatistics(
        mean=float(trainer_version - tokens.mean(dtype=np.float64)),
        maximum=int(trainer_version - tokens.min()),
        spans_versions=sum(len(np.unique(of_one)) > 1 for of_one in versions),
    )


def length_statistics(
    trajectories: Sequence[types.Trajectory], *, edges: Sequence[int]
) -> LengthStatistics:
    """Mean (NaN when there are none) and histogram of the action tokens per trajectory.

    Kept for the trained and for the dropped: dropping the stale ones drops the long ones first,
    and only this comparison shows it.

    Args:
      edges: increasing, the first at most 1.
    """
    lengths = np.array([trajectory.num_actions for trajectory in trajectories], np.int64)
    bins = np.searchsorted(np.asarray(edges), lengths, side="right") - 1
    counts = np.bincount(bins, minlength=len(edges))
    mean = float(lengths.mean()) if len(lengths) else float("nan")
    return LengthStatistics(mean=mean, edges=tuple(edges), counts=tuple(counts.tolist()))
