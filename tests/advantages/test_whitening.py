"""Whitening: worked numbers, unbiased deviation, equal advantages."""

import jax
import numpy as np
import pytest

from jaxrl_single.advantages import whitening

trajectories = jax.jit(lambda a, v, eps: whitening.whiten_trajectories(a, v, eps=eps))
tokens = jax.jit(lambda a, m: whitening.whiten_tokens(a, m, eps=1e-8))


def padded(advantages, size=6):
    fill = np.full(size - len(advantages), np.nan)
    return np.float32(np.append(advantages, fill)), np.arange(size) < len(advantages)


@pytest.mark.parametrize(
    ("advantages", "eps", "expected"),
    [
        ([0.7, -0.3, 0.1], 1e-8, [1.059625865, -0.927172632, -0.132453233]),
        # GRPO with the unbiased standard deviation
        ([1, 0, 0, 1], 1e-6, [0.866023904, -0.866023904, -0.866023904, 0.866023904]),
        ([1, 0.5, -1], 1e-6, [0.80064, 0.320256, -1.120896]),
    ],
)
def test_golden(advantages, eps, expected):
    got = trajectories(*padded(advantages), eps)
    np.testing.assert_allclose(got[: len(expected)], expected, atol=2e-6)
    np.testing.assert_array_equal(got[len(expected) :], 0.0)


@pytest.mark.parametrize("advantages", [[], [0.3], [0.9] * 3, [0.3] * 6, [0.9] * 6])
def test_equal_advantages_become_exactly_zero(advantages):
    """Rounding of the mean over eps 1e-8 would be of order 1."""
    np.testing.assert_array_equal(trajectories(*padded(advantages), 1e-8), 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_have_mean_zero_and_deviation_one(seed):
    rng = np.random.default_rng(seed)
    advantages, mask = np.float32(rng.normal(3, 5, size=(4, 9))), rng.random((4, 9)) < 0.6
    got = np.asarray(tokens(advantages, mask))
    counted = advantages[mask].astype(np.float64)
    expected = (counted - counted.mean()) / counted.std(ddof=1)
    np.testing.assert_allclose(got[mask], expected, atol=1e-5)
    np.testing.assert_array_equal(got[~mask], 0.0)
