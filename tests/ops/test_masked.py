"""Masked sums, ratios, quantiles and explained variance: values, gradients, garbage."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl_single.ops import masked

GARBAGE = (np.nan, np.inf, -np.inf, 3e38, -7.0)
FLOATS = st.floats(-50, 50, width=32, allow_subnormal=False)
total = jax.jit(masked.total)
mean = jax.jit(masked.mean)
explained_variance = jax.jit(masked.explained_variance)
quantiles = jax.jit(masked.quantiles, static_argnums=2)
VECTOR = hnp.arrays(np.float32, 12, elements=FLOATS)
MASK = hnp.arrays(np.bool_, 12)


@jax.jit
def total_ratio(policy, rollout, mask):
    return jnp.sum(masked.ratio(masked.safe_log_ratio(policy, rollout, mask)))


def test_total_and_mean_ignore_what_lies_under_the_mask():
    x, mask = np.array([1.0, np.nan, 3.0], np.float32), np.array([True, False, True])
    assert total(x, mask) == 4.0
    assert mean(x, mask) == 2.0
    assert mean(x, mask, denominator=8.0) == 0.5


def test_cleaning_selects_and_does_not_multiply():
    """XLA turns x * mask into a select, so only without jit does NaN * 0 show."""
    x, mask = np.array([1.0, np.nan, np.inf], np.float32), np.array([True, False, False])
    with jax.disable_jit():
        np.testing.assert_array_equal(masked.clean(x, mask), [1.0, 0.0, 0.0])
        assert masked.total(x, mask) == 1.0


def test_total_and_mean_of_nothing_are_zero():
    x, mask = np.array([np.nan, np.inf]), np.zeros(2, bool)
    assert total(x, mask) == 0.0
    assert mean(x, mask) == 0.0
    assert mean(x, mask, denominator=0.0) == 0.0


def test_nan_that_counts_surfaces():
    x, mask = np.array([1.0, np.nan]), np.ones(2, bool)
    assert np.isnan(total(x, mask))
    assert np.isnan(mean(x, mask))


def test_count_is_exact_beyond_the_integers_of_float32():
    assert jax.jit(masked.count)(np.ones(2**24 + 2, bool)) == 2**24 + 2


def test_results_are_float32_for_bfloat16_input():
    x, mask = jnp.array([1.0, 2.0], jnp.bfloat16), jnp.ones(2, bool)
    assert total(x, mask).dtype == jnp.float32
    assert masked.safe_log_ratio(x, x, mask).dtype == jnp.float32


def test_gradient_of_mean_is_one_over_count_and_zero_under_the_mask():
    x, mask = np.array([1.0, np.nan, 3.0], np.float32), np.array([True, False, True])
    np.testing.assert_array_equal(jax.grad(mean)(x, mask), [0.5, 0.0, 0.5])


@pytest.mark.parametrize("garbage", GARBAGE)
def test_ratio_of_masked_overflow_has_finite_gradient(garbage):
    """Masking after `exp` gives the right value here, and a NaN gradient."""
    rollout, mask = np.array([-1.0, garbage], np.float32), np.array([True, False])
    value, gradient = jax.value_and_grad(total_ratio)(
        np.array([-0.9, 200.0], np.float32), rollout, mask
    )
    np.testing.assert_allclose(value, np.exp(0.1) + 1.0, rtol=1e-6)
    np.testing.assert_allclose(gradient, [np.exp(0.1), 0.0], rtol=1e-6)


def test_ratio_is_finite_squared_and_keeps_nan():
    ratio = np.asarray(jax.jit(masked.ratio)(np.float32([1e4, -1e4, np.inf, np.nan, 0.0])))
    assert np.isfinite(np.square(ratio[:3])).all()
    assert np.isnan(ratio[3])
    assert ratio[4] == 1.0


@hypothesis.given(VECTOR, MASK)
@hypothesis.settings(deadline=None, max_examples=60)
def test_quantiles_equal_numpy(x, mask):
    qs = (0.0, 0.01, 0.25, 0.5, 0.9, 1.0)
    got = quantiles(x, mask, qs)
    if mask.any():
        np.testing.assert_allclose(got, np.quantile(x[mask], qs), rtol=1e-5, atol=1e-5)
    else:
        assert np.isnan(got).all()


def test_quantiles_of_garbage_infinities_and_nan():
    x = np.array([[1.0, np.nan, 2.0], [4.0, np.inf, 3.0]], np.float32)
    mask = np.array([[True, False, True], [True, False, True]])
    qs = (0.0, 0.5, 1.0)
    np.testing.assert_allclose(quantiles(x, mask, qs), [1.0, 2.5, 4.0])
    with_infinity = mask | (x == np.inf)
    np.testing.assert_array_equal(quantiles(x, with_infinity, qs), [1.0, 3.0, np.inf])
    assert np.isnan(quantiles(x, mask | np.isnan(x), qs)).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.8, 0.3, 0.6, 0.1], 0.71),  # residuals .2 -.3 .4 -.1: 1 - .0725 / .25
        ([0.5, 0.5, 0.5, 0.5], 0.0),
        ([0.0, 1.0, 0.0, 1.0], -3.0),  # inverted: residual variance 1
        ([1.0, 0.0, 1.0, 0.0], 1.0),
        ([6.0, 5.0, 6.0, 5.0], 1.0),  # a constant offset does not count
    ],
)
def test_explained_variance_golden(values, expected):
    returns = np.array([1.0, 0.0, np.nan, 1.0, 0.0])
    values = np.array([*values[:2], np.inf, *values[2:]])
    mask = np.array([True, True, False, True, True])
    np.testing.assert_allclose(explained_variance(values, returns, mask), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("returns", "mask"),
    [([1.0, 0.0], [True, False]), ([1.0, 0.0], [False, False]), ([0.3, 0.3], [True, True])],
)
def test_explained_variance_is_nan_where_undefined(returns, mask):
    values = np.array([0.2, 0.4])
    assert np.isnan(explained_variance(values, np.array(returns), np.array(mask)))
