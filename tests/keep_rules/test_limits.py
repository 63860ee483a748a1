"""Limits of whole trajectories."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.keep_rules import limits

all_within = jax.jit(limits.all_within, static_argnums=3)
mean_within = jax.jit(limits.mean_within, static_argnums=3)

# Trajectory 1 has no counted token; the last two tokens are padding.
X = np.array([1.0, 3.0, np.nan, 7.0, 2.0, 2.0, np.nan, 0.0], np.float32)
INDEX = np.array([0, 0, 0, 1, 2, 2, -1, -1])
MASK = np.array([1, 1, 0, 0, 1, 1, 0, 1], bool)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(2.9, [0, 0, 0, 0, 1, 1, 0, 0]), (3.0, [1, 1, 0, 0, 1, 1, 0, 0]), (1.9, [0] * 8)],
)
def test_all_within_is_closed(limit, expected):
    got = all_within(X, MASK, INDEX, 3, limit=limit)
    np.testing.assert_array_equal(got, np.array(expected, bool))


@pytest.mark.parametrize(("limit", "expected"), [(1.9, [0] * 8), (2.0, [1, 1, 0, 0, 1, 1, 0, 0])])
def test_mean_within_is_closed(limit, expected):
    got = mean_within(X, MASK, INDEX, 3, limit=limit)
    np.testing.assert_array_equal(got, np.array(expected, bool))


@pytest.mark.parametrize("function", [all_within, mean_within])
def test_an_infinite_limit_lets_everything_pass_but_nan(function):
    x = jnp.array([1e30, jnp.nan])
    got = function(x, np.ones(2, bool), np.array([0, 1]), 2, limit=math.inf)
    np.testing.assert_array_equal(got, [True, False])


def test_log_bound():
    assert limits.log_bound(1.0) == 0.0
    assert limits.log_bound(0.0) == limits.log_bound(-1.0) == -math.inf
