"""Sums per trajectory and back, with padding and garbage."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single.ops import segments

# Two packed rows: trajectories 0 and 1, then the rest of 1, then padding; trajectory 2 is empty.
INDEX = jnp.array([[0, 0, 1, 1], [1, 3, -1, -1]])
MASK = jnp.array([[True, False, True, True], [True, True, True, False]])
X = jnp.array([[1.0, jnp.nan, 10.0, 20.0], [30.0, 5.0, jnp.nan, jnp.inf]])


def test_sums_per_trajectory():
    for function in (
        segments.trajectory_sums,
        jax.jit(segments.trajectory_sums, static_argnums=3),
    ):
        np.testing.assert_array_equal(function(X, MASK, INDEX, 4), [1.0, 60.0, 0.0, 5.0])


def test_padding_never_counts_even_where_the_mask_says_so():
    """Index -1 must not wrap round to the last trajectory."""
    np.testing.assert_array_equal(segments.lengths(MASK, INDEX, 4), [1, 3, 0, 1])
    sums = segments.trajectory_sums(jnp.ones(3), jnp.ones(3, bool), jnp.array([0, -1, -1]), 2)
    np.testing.assert_array_equal(sums, [1.0, 0.0])


def test_gradient_of_sums_reaches_counted_tokens_only():
    weights = jnp.array([2.0, 3.0, 5.0, 7.0])

    def weighted(x):
        return jnp.sum(weights * segments.trajectory_sums(x, MASK, INDEX, 4))

    np.testing.assert_array_equal(jax.grad(weighted)(X), [[2, 0, 3, 3], [3, 7, 0, 0]])


def test_spread_gives_zero_on_padding():
    values = jnp.array([4.0, 5.0, 6.0, 7.0])
    np.testing.assert_array_equal(
        segments.spread(values, INDEX), [[4.0, 4.0, 5.0, 5.0], [5.0, 7.0, 0.0, 0.0]]
    )
    assert segments.spread(jnp.array([1, 2]), jnp.array([1, -1])).dtype == jnp.int32


def test_spread_of_nan_does_not_touch_padding():
    np.testing.assert_array_equal(segments.spread(jnp.array([jnp.nan]), jnp.array([-1])), [0.0])


def test_sums_of_spread_count_tokens():
    """sum over tokens of spread(v) per trajectory = v x its length."""
    values = jnp.array([0.5, 2.0, 9.0, -1.0])
    sums = segments.trajectory_sums(segments.spread(values, INDEX), MASK, INDEX, 4)
    np.testing.assert_allclose(sums, values * segments.lengths(MASK, INDEX, 4))
