"""Staleness is measured when a trajectory is consumed, per token, queue time included."""

import math

import numpy as np
import pytest

from jaxrl_single import types
from jaxrl_single.data import batching


def _trajectory(versions, *, ticket=0, **changes):
    """One context token, then an action token of each version; None is an observation."""
    mask = np.array([False] + [version is not None for version in versions])
    versions = [types.NOT_SAMPLED if version is None else version for version in versions]
    length = len(mask)
    zeros = np.zeros(length, np.float32)
    fields = {
        "run_id": "run",
        "ticket": ticket,
        "attempt": 0,
        "task_id": "task",
        "tokens": np.zeros(length, np.int32),
        "action_mask": mask,
        "rollout_logprobs": zeros,
        "policy_versions": np.array([types.NOT_SAMPLED, *versions], np.int32),
        "turn_ids": np.zeros(length, np.int32),
        "rewards": zeros,
        "entropies": zeros,
        "segment_ids": np.ones(length, np.int32),
        "reward": 0.0,
        "terminated": True,
        "truncated": False,
    }
    return types.Trajectory(**(fields | changes))


def test_a_trajectory_ages_in_the_queue():
    # Finished at version 0, waits until the trainer is at 5, bound 3.
    waiting = _trajectory([0, 0])
    assert batching.select([waiting], trainer_version=0, max_staleness=3).fresh == [waiting]
    assert batching.select([waiting], trainer_version=3, max_staleness=3).fresh == [waiting]
    late = batching.select([waiting], trainer_version=5, max_staleness=3)
    assert (late.fresh, late.stale) == ([], [waiting])
    assert batching.staleness(waiting, trainer_version=5) == 5


def test_the_oldest_token_decides():
    spanning = _trajectory([4, None, 7, 9])
    assert batching.staleness(spanning, trainer_version=9) == 5


def test_the_order_is_kept():
    given = [_trajectory([v], ticket=i) for i, v in enumerate([5, 0, 4, 1])]
    selection = batching.select(given, trainer_version=5, max_staleness=2)
    assert [t.ticket for t in selection.fresh] == [0, 2]
    assert [t.ticket for t in selection.stale] == [1, 3]


def test_a_version_from_the_future_is_an_error():
    with pytest.raises(ValueError, match="sampled by version 6, the trainer is at 5"):
        batching.staleness(_trajectory([5, 6]), trainer_version=5)


def test_scripted_episodes_never_age():
    script = _trajectory([-1, -1], source="script")
    assert batching.staleness(script, trainer_version=100) == 0
    statistics = batching.staleness_statistics([script], trainer_version=100)
    assert math.isnan(statistics.mean)


def test_statistics_count_tokens_not_trajectories():
    given = [_trajectory([3, None, 5, 5]), _trajectory([6])]
    statistics = batching.staleness_statistics(given, trainer_version=6)
    # Ages 3, 1, 1 and 0; the observation has no age.
    assert statistics == batching.StalenessStatistics(mean=1.25, maximum=3, spans_versions=1)


def test_lengths_are_counted_in_action_tokens():
    given = [_trajectory([0] * n) for n in (1, 2, 3, 4, 9)] + [_trajectory([0, None, None, 0])]
    statistics = batching.length_statistics(given, edges=(1, 2, 4, 8))
    assert statistics.counts == (1, 3, 1, 1)
    assert statistics.mean == pytest.approx(21 / 6)
    empty = batching.length_statistics([], edges=(1, 2))
    assert empty.counts == (0, 0)
    assert math.isnan(empty.mean)
