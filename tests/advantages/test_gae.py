"""GAE of one stream: worked numbers and the relations that define it."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl_single.advantages import gae

LENGTH = 7
FLOATS = st.floats(-3, 3, width=32, allow_subnormal=False)
STREAM = hnp.arrays(np.float32, LENGTH, elements=FLOATS)
UNIT = st.floats(0, 1, width=32, allow_subnormal=False)
function = jax.jit(lambda r, v, b, d, lam: gae.gae(r, v, b, discount=d, lambda_=lam))

REWARDS = np.array([0.0, 0.0, 0.0, 1.0], np.float32)
VALUES = np.array([0.5, 0.6, 0.4, 0.8], np.float32)


@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [
        # deltas: .6 - .5 = .1, .4 - .6 = -.2, .8 - .4 = .4, 1 - .8 = .2
        (0.5, [0.125, 0.05, 0.5, 0.2]),
        (1.0, [0.5, 0.4, 0.6, 0.2]),  # R - V
        (0.0, [0.1, -0.2, 0.4, 0.2]),  # the deltas
    ],
)
def test_golden(lambda_, expected):
    advantages, returns = function(REWARDS, VALUES, 0.0, 1.0, lambda_)
    np.testing.assert_allclose(advantages, expected, atol=1e-6)
    np.testing.assert_allclose(returns, np.array(expected) + VALUES, atol=1e-6)


def test_bootstrap_value_follows_the_last_reward():
    advantages, _ = function(np.zeros(2, np.float32), np.array([0.5, 0.6]), 0.7, 1.0, 0.5)
    np.testing.assert_allclose(advantages, [0.15, 0.1], atol=1e-6)


def test_lambda_per_token_scales_what_comes_after_that_token():
    """A_2 = .4 + 1 x .2, A_1 = -.2 + 0 x A_2, A_0 = .1 + .5 x A_1."""
    lambda_ = np.array([0.5, 0.0, 1.0, 0.3], np.float32)
    advantages, _ = function(REWARDS, VALUES, 0.0, 1.0, lambda_)
    np.testing.assert_allclose(advantages, [0.0, -0.2, 0.6, 0.2], atol=1e-6)


@hypothesis.given(STREAM, STREAM, FLOATS, UNIT, UNIT)
@hypothesis.settings(deadline=None, max_examples=60)
def test_equals_the_sum_of_discounted_deltas(rewards, values, bootstrap, discount, lambda_):
    advantages, returns = function(rewards, values, bootstrap, discount, lambda_)
    following = np.append(values[1:], np.float32(bootstrap)).astype(np.float64)
    deltas = rewards + discount * following - values
    distance = np.arange(LENGTH)[None, :] - np.arange(LENGTH)[:, None]
    weights = np.where(distance >= 0, (discount * lambda_) ** np.maximum(distance, 0.0), 0.0)
    np.testing.assert_allclose(advantages, weights @ deltas, atol=2e-5)
    np.testing.assert_allclose(returns, weights @ deltas + values, atol=2e-5)


@hypothesis.given(STREAM, STREAM, FLOATS, UNIT)
@hypothesis.settings(deadline=None, max_examples=60)
def test_lambda_one_telescopes_to_the_discounted_return(rewards, values, bootstrap, discount):
    """All values but the bootstrap cancel in the returns."""
    _, returns = function(rewards, values, bootstrap, discount, 1.0)
    expected, following = np.zeros(LENGTH), float(bootstrap)
    for t in reversed(range(LENGTH)):
        following = expected[t] = rewards[t] + discount * following
    np.testing.assert_allclose(returns, expected, atol=2e-5)


def test_vmap_equals_loop():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 3, LENGTH)).astype(np.float32)
    bootstraps, lambdas = rng.uniform(size=(2, 3)).astype(np.float32)
    mapped = jax.vmap(function, in_axes=(0, 0, 0, None, 0))
    together = mapped(rewards, values, bootstraps, 0.9, lambdas)
    for i in range(3):
        alone = function(rewards[i], values[i], bootstraps[i], 0.9, lambdas[i])
        np.testing.assert_allclose(together[0][i], alone[0], atol=1e-6)
        np.testing.assert_allclose(together[1][i], alone[1], atol=1e-6)


def test_no_gradient_flows():
    gradient = jax.grad(lambda v: jnp.sum(gae.gae(REWARDS, v, 0.0, discount=1.0, lambda_=0.5)[1]))
    np.testing.assert_array_equal(gradient(VALUES), np.zeros(4))
