"""Branching: siblings, nested forks, what nothing is credited to, the bias that this avoids."""

import jax
import numpy as np
import pytest

from jaxrl_single.advantages import branching

function = jax.jit(branching.branching)


def stream(lengths):
    """trajectory_index and token_index of trajectories of these lengths."""
    index = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    return index, np.concatenate([np.arange(n) for n in lengths]).astype(np.int32)


def estimate(rewards, parent, fork_index, lengths, valid=None):
    index, token_index = stream(lengths)
    valid = np.ones(len(lengths), bool) if valid is None else np.array(valid)
    arrays = (np.float32(rewards), valid, np.int32(parent), np.int32(fork_index))
    advantages = function(*arrays, np.ones(len(index), bool), index, token_index)
    return np.split(np.asarray(advantages), np.cumsum(lengths)[:-1])


def test_golden_four_siblings():
    """R = 1, 0, -1, 2: 1 - (0 - 1 + 2) / 3 and so on; before the fork nothing, one backbone."""
    got = estimate([1, 0, -1, 2], [-1, 0, 0, 0], [0, 2, 2, 2], [3, 4, 3, 3])
    for advantages, expected in zip(got, [2 / 3, -2 / 3, -2, 2], strict=True):
        np.testing.assert_array_equal(advantages[:2], 0.0)
        np.testing.assert_allclose(advantages[2:], expected, atol=1e-6)


def test_backbone_follows_its_latest_branch_point():
    """Forked at 1 and at 3; the second backbone sets the level before the first fork."""
    got = estimate([1, 0, 0.5, 3], [-1, 0, 0, -1], [0, 1, 3, 0], [4, 2, 4, 1])
    np.testing.assert_allclose(got[0], [-1, 1, 1, 0.5])
    np.testing.assert_allclose(got[1], [0, -1])
    np.testing.assert_allclose(got[2], [0, 0, 0, -0.5])
    np.testing.assert_allclose(got[3], [1])


def test_child_that_was_forked_again():
    """1 is a child of 0 from token 1 on, and from token 3 on the parent of 2."""
    got = estimate([0, 1, 4], [-1, 0, 1], [0, 1, 3], [2, 5, 4])
    np.testing.assert_allclose(got[0], [0, -1])
    np.testing.assert_allclose(got[1], [0, 1, 1, -3, -3])
    np.testing.assert_allclose(got[2], [0, 0, 0, 3])


def test_equal_siblings_give_exactly_zero():
    got = estimate([0.1] * 4, [-1, 0, 0, 0], [0, 1, 1, 1], [2, 2, 2, 2])
    np.testing.assert_array_equal(np.concatenate(got), 0.0)


def test_what_is_not_valid_is_no_sibling():
    got = estimate([1, np.nan, 3], [-1, 0, 0], [0, 1, 1], [2, 2, 2], [True, False, True])
    np.testing.assert_allclose(np.concatenate(got), [0, -2, 0, 0, 0, 2])
    got = estimate([1, np.nan], [-1, 0], [0, 1], [2, 2], [True, False])
    np.testing.assert_array_equal(np.concatenate(got), 0.0)  # no branch point is left
    got = estimate([np.nan, 1, 3], [-1, 0, 0], [0, 1, 1], [2, 2, 2], [False, True, True])
    np.testing.assert_allclose(np.concatenate(got), [0, 0, 0, -2, 0, 2])
    got = estimate([np.nan, 1], [-1, 0], [0, 1], [2, 2], [False, True])
    np.testing.assert_array_equal(np.concatenate(got), 0.0)


def independent(rewards, valid, parent, fork_index, index, token_index):
    """Token by token: search its latest branch point, list the siblings."""
    advantages = np.zeros(len(index))
    for n, (i, t) in enumerate(zip(index, token_index, strict=True)):
        if not valid[i]:
            continue
        points = [(f, 1, i) for p, f, v in zip(parent, fork_index, valid, strict=True)
                  if v and p == i and f <= t]  # fmt: skip
        if parent[i] >= 0 and fork_index[i] <= t:
            points.append((fork_index[i], 0, parent[i]))
        backbones = rewards[valid & (parent < 0)]
        if parent[i] < 0:
            advantages[n] = rewards[i] - backbones.mean()
        for fork, _, root in sorted(points):
            siblings = [k for k in range(len(valid)) if valid[k] and k != i and (
                k == root or (parent[k] == root and fork_index[k] == fork))]  # fmt: skip
            if siblings:
                advantages[n] = rewards[i] - np.mean(rewards[siblings])
    return advantages


@pytest.mark.parametrize("seed", range(6))
def test_random_forests_equal_independent_version(seed):
    rng = np.random.default_rng(seed)
    lengths = [6] * 8
    parent = np.array([-1, -1, *(rng.integers(0, k) for k in range(2, 8))], np.int32)
    fork_index = np.where(parent < 0, 0, rng.integers(1, 4, 8)).astype(np.int32)
    valid, rewards = rng.random(8) < 0.85, rng.normal(size=8)
    index, token_index = stream(lengths)
    expected = independent(rewards, valid, parent, fork_index, index, token_index)
    dirty = np.where(valid, rewards, np.nan)
    got = np.concatenate(estimate(dirty, parent, fork_index, lengths, valid))
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_the_action_before_the_fork_is_trained_by_the_backbones():
    """The first action is Bernoulli(.3) and R is that action: the true gradient is .21.

    Siblings share it, so their comparison is 0; two backbones give half of the gradient, the
    price of a batch mean that includes oneself.
    """
    probability, expected = 0.3, 0.0
    for first in (0, 1):
        for second in (0, 1):
            weight = np.prod([probability if a else 1 - probability for a in (first, second)])
            rewards = [first, second, first, second]
            got = estimate(rewards, [-1, -1, 0, 1], [0, 0, 1, 1], [2] * 4)
            assert all(advantages[1] == 0 for advantages in got)
            scores = (first - probability) * got[0][0] + (second - probability) * got[1][0]
            expected += weight * scores / 2
    np.testing.assert_allclose(expected, 0.21 / 2, atol=1e-7)
