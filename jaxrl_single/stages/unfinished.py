"""Value pretraining that was stopped: which rollouts of the warm policy it had taken already.

They were marked as trained, so the book of tickets alone would not ask for them again, and their
files are still in the store, because no checkpoint has covered them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxrl_single import checkpoint as checkpoint_lib
from jaxrl_single import store as store_lib
from jaxrl_single import types

_STATE = {"count": np.zeros((), np.int32)}  # a checkpoint holds an array at least


def save(
    checkpoints: checkpoint_lib.Checkpoints,
    taken: Sequence[types.Trajectory],
    metadata: dict[str, Any],
) -> None:
    """Notes what was taken, beside the metadata of any checkpoint."""
    keys = [trajectory.key for trajectory in taken]
    if len(keys) > (checkpoints.latest_step() or 0):
        checkpoints.save(len(keys), _STATE, {**metadata, "taken": keys})


def metadata(checkpoints: checkpoint_lib.Checkpoints) -> dict[str, Any] | None:
    """What `save` noted last, None where it never did."""
    if checkpoints.latest_step() is None:
        return None
    return checkpoints.restore(_STATE)[1]


def read(store: store_lib.TrajectoryStore, keys: Iterable[str]) -> list[types.Trajectory]:
    """The trajectories, which a scan has found; without those that are gone or torn."""
    found = []
    for key in keys:
        with contextlib.suppress(KeyError, store_lib.Rejected):
            found.append(store.read(key))
    return found
