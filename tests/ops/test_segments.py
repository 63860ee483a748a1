"""Sums per trajectory and back, with padding and garbage."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single.ops import segments

sums = jax.jit(segments.trajectory_sums, static_argnums=3)
lengths = jax.jit(segments.lengths, static_argnums=2)
spread = jax.jit(segments.spread)

# Two packed rows: trajectories 0 and 1, then the rest of 1, then padding; trajectory 2 is empty.
INDEX = np.array([[0, 0, 1, 1], [1, 3, -1, -1]])
MASK = np.array([[True, False, True, True], [True, True, True, False]])
X = np.array([[1.0, np.nan, 10.0, 20.0], [30.0, 5.0, np.nan, np.inf]], np.float32)


def test_sums_per_trajectory():
    np.testing.assert_array_equal(sums(X, MASK, INDEX, 4), [1.0, 60.0, 0.0, 5.0])


def test_padding_never_counts_even_where_the_mask_says_so():
    """Index -1 must not wrap round to the last trajectory."""
    np.testing.assert_array_equal(lengths(MASK, INDEX, 4), [1, 3, 0, 1])
    got = sums(np.ones(3), np.ones(3, bool), np.array([0, -1, -1]), 2)
    np.testing.assert_array_equal(got, [1.0, 0.0])


def test_gradient_of_sums_reaches_counted_tokens_only():
    weights = np.array([2.0, 3.0, 5.0, 7.0], np.float32)

    @jax.jit
    @jax.grad
    def gradient(x):
        return jnp.sum(weights * sums(x, MASK, INDEX, 4))

    np.testing.assert_array_equal(gradient(X), [[2, 0, 3, 3], [3, 7, 0, 0]])


def test_spread_gives_zero_on_padding():
    values = np.array([4.0, 5.0, 6.0, 7.0])
    np.testing.assert_array_equal(
        spread(values, INDEX), [[4.0, 4.0, 5.0, 5.0], [5.0, 7.0, 0.0, 0.0]]
    )
    assert spread(np.array([1, 2]), np.array([1, -1])).dtype == jnp.int32


def test_spread_of_nan_does_not_touch_padding():
    np.testing.assert_array_equal(spread(np.array([np.nan]), np.array([-1])), [0.0])


def test_sums_of_spread_count_tokens():
    """sum over tokens of spread(v) per trajectory = v x its length."""
    values = np.array([0.5, 2.0, 9.0, -1.0], np.float32)
    got = sums(spread(values, INDEX), MASK, INDEX, 4)
    np.testing.assert_allclose(got, values * np.asarray(lengths(MASK, INDEX, 4)))
