"""Turns of a stream, and groups by key, against loops."""

import jax
import numpy as np
import pytest

from jaxrl_single.advantages import turns
from jaxrl_single.ops import grouping

find = jax.jit(turns.find)
label = jax.jit(grouping.label)
centred = jax.jit(grouping.centred)
normalised = jax.jit(grouping.normalised)
sums, means, spread = jax.jit(turns.sums), jax.jit(turns.means), jax.jit(turns.spread)

# Trajectory 0: a a o | o a, padding, a of the same turn; trajectory 1 begins with turn id 1 too.
MASK = np.array([1, 1, 0, 0, 1, 1, 1, 1, 1], bool)
INDEX = np.array([0, 0, 0, 0, 0, -1, 0, 1, 1], np.int32)
TURN = np.array([0, 0, 0, 1, 1, 5, 1, 1, 2], np.int32)


def test_turns_of_a_stream():
    found = find(MASK, INDEX, TURN)
    np.testing.assert_array_equal(found.counted, [1, 1, 0, 0, 1, 0, 1, 1, 1])
    np.testing.assert_array_equal(found.row, [0, 0, 0, 0, 1, 0, 1, 2, 3])
    np.testing.assert_array_equal(found.exists, [1] * 4 + [0] * 5)
    np.testing.assert_array_equal(found.first[:4], [0, 4, 7, 8])
    np.testing.assert_array_equal(found.last[:4], [1, 6, 7, 8])
    np.testing.assert_array_equal(found.trajectory, [0, 0, 1, 1] + [-1] * 5)


def test_sums_means_and_back():
    x = np.float32([1, 2, np.nan, np.inf, 3, np.nan, 5, 7, 9])
    found = find(MASK, INDEX, TURN)
    np.testing.assert_array_equal(sums(x, found), [3, 8, 7, 9, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(means(x, found), [1.5, 4, 7, 9, 0, 0, 0, 0, 0])
    back = spread(means(x, found), found)
    np.testing.assert_array_equal(back, [1.5, 1.5, 0, 0, 4, 0, 4, 7, 9])


def test_no_action_token_means_no_turn():
    found = find(np.zeros(9, bool), INDEX, TURN)
    assert not np.any(found.exists)
    np.testing.assert_array_equal(found.trajectory, -1)


@pytest.mark.parametrize("seed", range(4))
def test_labels_agree_where_all_keys_do(seed):
    rng = np.random.default_rng(seed)
    first_key, second_key = rng.integers(-2, 2, (2, 12)).astype(np.int32)
    mask = rng.random(12) < 0.7
    labels, first = (np.asarray(x) for x in label((first_key, second_key), mask))
    met = {}
    for i in np.flatnonzero(mask):
        pair = (first_key[i], second_key[i])
        assert first[i] == (pair not in met)
        assert labels[i] == met.setdefault(pair, labels[i])
    assert len(set(met.values())) == len(met)
    assert not np.any(np.asarray(first)[~mask])


@pytest.mark.parametrize("seed", range(4))
def test_groups_equal_loops(seed):
    rng = np.random.default_rng(seed)
    x, key, mask = rng.normal(size=12), rng.integers(0, 4, 12), rng.random(12) < 0.8
    labels, _ = label((np.int32(key),), mask)
    deviation, scaled = np.zeros(12), np.zeros(12)
    for i in np.flatnonzero(mask):
        own = x[mask & (key == key[i])]
        deviation[i] = x[i] - own.mean()
        scaled[i] = deviation[i] / (own.std() + 0.1)
    dirty = np.where(mask, x, np.nan).astype(np.float32)
    np.testing.assert_allclose(centred(dirty, labels, mask), deviation, atol=1e-6)
    got = normalised(dirty, labels, mask, eps=0.1)
    np.testing.assert_allclose(got, scaled, atol=1e-5)


def test_equal_groups_are_exactly_zero():
    x, labels = np.float32([0.1, 0.1, 0.1, 0.7]), np.int32([0, 0, 0, 1])
    got = normalised(x, labels, np.ones(4, bool), eps=0.0)
    np.testing.assert_array_equal(got, 0.0)
