"""DIS: the open interval, garbage, overflow, no gradient."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl_single.keep_rules import dis

function = jax.jit(dis.dis, static_argnames=("low", "high"))


def test_interval_is_open():
    """Ratios fed directly: exp(log(0.7)) need not be 0.7."""
    ratio = jnp.array([0.69, 0.7, 1.0, 5.9, 6.0, 6.1])
    np.testing.assert_array_equal(
        dis.inside(ratio, low=0.3, high=5.0), [False, False, True, True, False, False]
    )


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (0.3, 0.0)])
def test_a_bound_at_ratio_one_drops_it(low, high):
    """exp(0) is exactly 1, so the bound is exact through the log-ratio too."""
    assert function(jnp.zeros(1), jnp.ones(1, bool), low=low, high=high) == 0.0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.3, 5.0, [1, 0, 1, 1, 0]), (0.8, 3.0, [1, 0, 1, 1, 0]), (0.95, 10.0, [1, 1, 1, 1, 1])],
)
def test_golden_on_the_fixture_of_all_gates(low, high, expected):
    rollout = jnp.array([0.60, 0.019, 0.90, 0.30, 0.005])
    policy = jnp.array([0.50, 0.12, 0.97, 0.29, 0.0005])
    keep = function(jnp.log(policy) - jnp.log(rollout), jnp.ones(5, bool), low=low, high=high)
    np.testing.assert_array_equal(keep, expected)
    assert keep.dtype == jnp.float32


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e38, 0.0])
def test_masked_tokens_are_never_kept(garbage):
    log_ratio, mask = jnp.array([0.0, garbage]), jnp.array([True, False])
    np.testing.assert_array_equal(function(log_ratio, mask, low=0.3, high=5.0), [1.0, 0.0])


@pytest.mark.parametrize("log_ratio", [200.0, -200.0, np.inf, -np.inf])
def test_extreme_ratios_are_dropped(log_ratio):
    keep = function(jnp.array([log_ratio]), jnp.ones(1, bool), low=0.3, high=5.0)
    np.testing.assert_array_equal(keep, [0.0])


@hypothesis.given(
    hnp.arrays(np.float32, 16, elements=st.floats(-3, 3, width=32, allow_subnormal=False))
)
@hypothesis.settings(deadline=None, max_examples=60)
def test_equals_float64_away_from_the_bounds(log_ratio):
    ratio = np.exp(log_ratio.astype(np.float64))
    clear = (np.abs(ratio - 0.7) > 1e-5) & (np.abs(ratio - 6.0) > 1e-4)
    keep = np.asarray(function(log_ratio, np.ones(16, bool), low=0.3, high=5.0))
    np.testing.assert_array_equal(keep[clear], ((ratio > 0.7) & (ratio < 6.0))[clear])


def test_rows_and_vmap_agree():
    rng = np.random.default_rng(0)
    log_ratio, mask = rng.normal(size=(3, 5)).astype(np.float32), rng.random((3, 5)) < 0.5
    mapped = jax.vmap(lambda x, m: dis.dis(x, m, low=0.3, high=5.0))(log_ratio, mask)
    np.testing.assert_array_equal(mapped, function(log_ratio, mask, low=0.3, high=5.0))


def test_no_gradient_flows():
    mask = jnp.ones(3, bool)
    gradient = jax.grad(lambda x: jnp.sum(x * dis.dis(x, mask, low=0.3, high=5.0)))
    np.testing.assert_array_equal(gradient(jnp.array([0.1, 0.0, -1.0])), [1.0, 1.0, 0.0])
