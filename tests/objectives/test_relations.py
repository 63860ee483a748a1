"""Objectives against each other and against independent numpy, on drawn numbers in float64."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl_single.keep_rules import dis
from jaxrl_single.objectives import bellman_bpo, cispo, gspo, ppo_clip, sao, score

SIZE = 6
MASK = np.ones(SIZE, bool)
INDEX = np.array([0, 0, 0, 1, 1, 2], np.int32)
LOGPROBS = hnp.arrays(np.float64, SIZE, elements=st.floats(-5, -0.01))
# In hundredths: products with numbers near the smallest float are flushed to 0.
ADVANTAGES = hnp.arrays(np.float64, SIZE, elements=st.integers(-200, 200).map(lambda x: x / 100))
KEEP = hnp.arrays(np.float64, SIZE, elements=st.sampled_from([0.0, 0.5, 1.0]))
SETTINGS = hypothesis.settings(deadline=None, max_examples=25)

# Each from (policy, rollout, advantages, keep).
OBJECTIVES = {
    "score": lambda p, r, a, k: score.score(p, a, k, MASK),
    "sao": lambda p, r, a, k: sao.sao(p, r, a, k, MASK),
    "cispo": lambda p, r, a, k: cispo.cispo(p, r, a, k, MASK, low=0.5, high=0.3),
    "ppo_clip": lambda p, r, a, k: ppo_clip.ppo_clip(p, r, a, k, MASK, low=0.2, high=0.2),
    "gspo": lambda p, r, a, k: gspo.gspo(p, r, a, k, MASK, INDEX, 3, low=0.2, high=0.2),
    "bellman_bpo": lambda p, r, a, k: bellman_bpo.bellman_bpo(p, r, a, k, MASK, eps=0.1, cap=3.0),
}


@functools.cache
def compiled(name):
    def total(*arrays):
        per_token, weights, _ = OBJECTIVES[name](*arrays)
        return jnp.sum(per_token), (per_token, weights)

    return jax.jit(jax.grad(total, has_aux=True))


def coefficients(name, *arrays):
    """Minus the gradient of the sum over tokens, weights, and the loss per token."""
    with jax.enable_x64(True):
        gradient, (per_token, weights) = jax.device_get(compiled(name)(*arrays))
    assert gradient.dtype == per_token.dtype == weights.dtype == np.float64
    return -gradient, weights, per_token


def unclipped(ratio, advantages):
    """Where PPO's clip at 0.2 is not active, by the sign of the advantage."""
    return np.where(advantages > 0, ratio <= 1.2, (advantages == 0) | (ratio >= 0.8))


def by_definition(name, policy, rollout, advantages):
    """The weight without keep."""
    ratio = np.exp(policy - rollout)
    if name == "gspo":
        ratio = np.exp([np.mean((policy - rollout)[i == INDEX]) for i in INDEX])
    if name in ("ppo_clip", "gspo"):
        return ratio * unclipped(ratio, advantages)
    if name == "bellman_bpo":
        return np.minimum((1.1 - np.exp(rollout)) / (1.1 - np.exp(policy)), 3.0)
    return {"score": np.ones(SIZE), "sao": ratio, "cispo": np.clip(ratio, 0.5, 1.3)}[name]


@pytest.mark.parametrize("name", OBJECTIVES)
@hypothesis.given(LOGPROBS, LOGPROBS, ADVANTAGES, KEEP)
@SETTINGS
def test_numpy_weights(name, policy, rollout, advantages, keep):
    """Minus the gradient is weight x advantage, and the weight is what the definition says."""
    gradient, weights, _ = coefficients(name, policy, rollout, advantages, keep)
    expected = by_definition(name, policy, rollout, advantages) * keep
    np.testing.assert_allclose(weights, expected, rtol=1e-10)
    np.testing.assert_allclose(gradient, weights * advantages, rtol=1e-10)


@pytest.mark.parametrize("name", OBJECTIVES)
@hypothesis.given(LOGPROBS, ADVANTAGES, KEEP)
@SETTINGS
def test_all_have_one_gradient_where_the_policy_is_the_one_that_sampled(
    name, policy, advantages, keep
):
    gradient, _, _ = coefficients(name, policy, policy, advantages, keep)
    np.testing.assert_allclose(gradient, advantages * keep, rtol=1e-12)


@hypothesis.given(LOGPROBS, LOGPROBS, ADVANTAGES)
@SETTINGS
def test_dis_is_the_gradient_of_the_ratio_inside_its_band_and_zero_outside(
    policy, rollout, advantages
):
    """Central differences of ratio x A where the ratio lies in the open band (0.7, 6)."""
    ratio, step = np.exp(policy - rollout), 1e-5
    hypothesis.assume(np.min(np.abs(np.log(ratio / 0.7))) > 1e-4)
    hypothesis.assume(np.min(np.abs(np.log(ratio / 6.0))) > 1e-4)
    slope = (np.exp(policy + step - rollout) - np.exp(policy - step - rollout)) / (2 * step)
    with jax.enable_x64(True):
        keep = np.asarray(dis.dis(policy - rollout, MASK, low=0.3, high=5.0))
    gradient, _, _ = coefficients("sao", policy, rollout, advantages, keep)
    inside = (ratio > 0.7) & (ratio < 6.0)
    expected = np.where(inside, slope * advantages, 0.0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-12)


@hypothesis.given(LOGPROBS, LOGPROBS, LOGPROBS, ADVANTAGES)
@SETTINGS
def test_decoupled_ppo_is_the_clip_at_the_proximal_policy_times_a_capped_weight(
    policy, proximal, rollout, advantages
):
    """-w min(r A, clip(r) A) with r = policy / proximal and w = min(proximal / rollout, 5)."""
    ratio, weight = np.exp(policy - proximal), np.minimum(np.exp(proximal - rollout), 5.0)
    bounded = np.clip(ratio, 0.8, 1.2) * advantages
    _, _, per_token = coefficients("ppo_clip", policy, proximal, advantages, weight)
    np.testing.assert_allclose(
        per_token, -weight * np.minimum(ratio * advantages, bounded), rtol=1e-10
    )
