"""CISPO: limits on the weight for both signs of the advantage, no token without a gradient."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl_single.objectives import cispo, sao

RATIOS = jnp.array([0.1, 0.7, 1.1, 1.5, 8.0])
ROLLOUT = jnp.log(jnp.full(5, 0.1))
POLICY = ROLLOUT + jnp.log(RATIOS)
ALL = jnp.ones(5, bool)


@jax.jit(static_argnames=("low", "high"))
def total_loss(policy, rollout, advantages, keep, *, low, high):
    per_token, weights, metrics = cispo.cispo(
        policy, rollout, advantages, keep, ALL, low=low, high=high
    )
    return jnp.sum(per_token), (per_token, weights, metrics)


def run(advantages, keep, *, low, high):
    (_, auxiliary), gradient = jax.value_and_grad(total_loss, has_aux=True)(
        POLICY, ROLLOUT, advantages, keep, low=low, high=high
    )
    return *auxiliary, gradient


@pytest.mark.parametrize(
    ("low", "weights", "clipped"),
    [(1.0, [0.1, 0.7, 1.1, 1.3, 1.3], 2), (0.2, [0.8, 0.8, 1.1, 1.3, 1.3], 4)],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_golden(sign, low, weights, clipped):
    per_token, got, metrics, gradient = run(jnp.full(5, 2.0 * sign), jnp.ones(5), low=low, high=0.3)
    np.testing.assert_allclose(got, weights, rtol=1e-6)
    np.testing.assert_allclose(gradient, -2.0 * sign * np.array(weights), rtol=1e-6)
    np.testing.assert_allclose(per_token, -2.0 * sign * np.array(weights) * POLICY, rtol=1e-6)
    assert metrics["policy/clip_fraction"] == (clipped, 5)


def test_dropped_tokens_have_no_weight_and_do_not_count_as_clipped():
    keep = jnp.array([1.0, 1.0, 0.5, 0.0, 0.0])
    _, weights, metrics, _ = run(jnp.ones(5), keep, low=1.0, high=0.3)
    np.testing.assert_allclose(weights, [0.1, 0.7, 0.55, 0.0, 0.0], rtol=1e-6)
    assert metrics["policy/clip_fraction"] == (0, 5)


@hypothesis.given(hnp.arrays(np.float32, 5, elements=st.floats(-2, 2, width=32)))
@hypothesis.settings(deadline=None, max_examples=30)
def test_without_limits_is_the_score_function_with_the_ratio(advantages):
    keep = jnp.array([1.0, 0.0, 0.5, 1.0, 1.0])
    expected, expected_weights, _ = sao.sao(POLICY, ROLLOUT, advantages, keep, ALL)
    per_token, weights, metrics, _ = run(jnp.asarray(advantages), keep, low=1.0, high=1e6)
    np.testing.assert_allclose(per_token, expected, rtol=1e-6)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-6)
    assert metrics["policy/clip_fraction"][0] == 0
