"""GSPO: one ratio per trajectory, the gradient through its mean, clipping of whole trajectories."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import gspo
from jaxrl_single.ops import reduce

# Mean log ratios of two, three and one tokens: 0.05, -0.2 and 0.4.
LOG_RATIO = np.array([0.3, -0.2, -0.5, 0.1, -0.2, 0.4])
INDEX = jnp.array([0, 0, 1, 1, 1, 2])
ROLLOUT = np.log(np.array([0.2, 0.3, 0.1, 0.4, 0.25, 0.3]))
MEANS = np.array([0.05, 0.05, -0.2, -0.2, -0.2, 0.4])
ALL = np.ones(6, bool)


def call(policy, advantages, keep, mask=ALL, low=0.1, high=0.2):
    arrays = (policy, jnp.asarray(ROLLOUT), advantages, keep, mask, INDEX)
    return gspo.gspo(*arrays, 3, low=low, high=high)


published = jax.jit(functools.partial(call, low=3e-4, high=4e-4))


def gradient_of_sum(policy, advantages, keep, mask=ALL):
    def total(policy):
        per_token, weights, metrics = call(policy, advantages, keep, mask)
        return jnp.sum(per_token), (per_token, weights, metrics)

    return jax.jit(jax.grad(total, has_aux=True))(policy)


def test_golden_positive_and_negative_advantages():
    """The second is clipped below (A < 0) and the third above (A > 0), the first is free."""
    advantages = jnp.array([2.0, 2.0, -1.0, -1.0, -1.0, 1.0])
    policy = jnp.asarray(ROLLOUT + LOG_RATIO)
    gradient, (per_token, weights, metrics) = gradient_of_sum(policy, advantages, jnp.ones(6))
    free = np.exp(0.05)
    np.testing.assert_allclose(per_token, [-2 * free] * 2 + [0.9] * 3 + [-1.2], rtol=1e-6)
    np.testing.assert_allclose(gradient, [-2 * free] * 2 + [0.0] * 4, rtol=1e-6)
    np.testing.assert_allclose(weights, [free, free, 0, 0, 0, 0], rtol=1e-6)
    assert metrics["policy/clip_fraction"] == (4, 6)


def test_no_clip_on_the_other_side_of_each_sign():
    advantages = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, -1.0])
    policy = jnp.asarray(ROLLOUT + LOG_RATIO)
    gradient, (_, weights, metrics) = gradient_of_sum(policy, advantages, jnp.ones(6))
    np.testing.assert_allclose(weights, np.exp(MEANS), rtol=1e-6)
    np.testing.assert_allclose(gradient, -np.exp(MEANS) * advantages, rtol=1e-6)
    assert metrics["policy/clip_fraction"][0] == 0


@pytest.mark.parametrize(
    ("reduction", "weight"),
    [("sequence_mean", [1 / 3, 1 / 3, 1 / 3]), ("token_mean", [2 / 6, 3 / 6, 1 / 6])],
)
def test_is_the_gradient_through_the_mean(reduction, weight):
    """Against the definition, in which a trajectory has one term -min(s A, clip(s) A)."""
    advantage, policy = jnp.array([1.5, -1.0, -0.5]), jnp.asarray(ROLLOUT + LOG_RATIO)
    size = reduce.denominator(reduction, num_tokens=6, num_trajectories=3)
    lengths = jnp.array([2.0, 2.0, 3.0, 3.0, 3.0, 1.0])

    def definition(policy):
        means = jax.ops.segment_sum(policy - ROLLOUT, INDEX, 3) / jnp.array([2.0, 3.0, 1.0])
        ratio = jnp.exp(means)
        terms = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.9, 1.2) * advantage)
        return -jnp.sum(jnp.array(weight) * terms)

    def reduced(policy):
        per_token, _, _ = call(policy, advantage[INDEX], jnp.ones(6))
        return reduce.REDUCTIONS[reduction](
            per_token, ALL, trajectory_lengths=lengths, denominator=size
        )

    expected = jax.jit(jax.value_and_grad(definition))(policy)
    value, gradient = jax.jit(jax.value_and_grad(reduced))(policy)
    np.testing.assert_allclose(value, expected[0], rtol=1e-6, atol=2e-7)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-5)


def test_a_dropped_token_stays_in_the_mean_and_has_no_gradient():
    keep = jnp.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    policy = jnp.asarray(ROLLOUT + LOG_RATIO)
    gradient, (per_token, weights, _) = gradient_of_sum(policy, jnp.ones(6), keep)
    np.testing.assert_allclose(weights[:2], [np.exp(0.05), 0.0], rtol=1e-6)
    assert gradient[1] == 0.0
    assert per_token[1] == 0.0


def test_a_token_off_the_mask_is_not_in_the_mean():
    mask = ALL.copy()
    mask[1] = False
    policy = jnp.asarray(ROLLOUT + LOG_RATIO)
    _, (_, weights, metrics) = gradient_of_sum(policy, -jnp.ones(6), jnp.ones(6), mask)
    np.testing.assert_allclose(weights[:2], [np.exp(0.3), 0.0], rtol=1e-6)
    assert metrics["policy/clip_fraction"][1] == 5


@pytest.mark.parametrize(("log_ratio", "clipped"), [(2e-4, 0), (5e-4, 6)])
def test_the_published_range_is_told_apart_in_float32(log_ratio, clipped):
    """Mean log ratios of +-2e-4 are inside, +-5e-4 outside of 1 - 3e-4 and 1 + 4e-4."""
    for sign in (1.0, -1.0):
        policy = jnp.asarray(ROLLOUT + sign * log_ratio, jnp.float32)
        _, _, metrics = published(policy, np.full(6, sign, np.float32), np.ones(6, np.float32))
        assert metrics["policy/clip_fraction"][0] == clipped


def test_an_extreme_trajectory_is_limited_and_finite():
    policy = jnp.asarray(ROLLOUT).at[5].add(300.0)
    gradient, (per_token, _, _) = gradient_of_sum(policy, -jnp.ones(6), jnp.ones(6))
    assert np.isfinite(per_token).all()
    assert np.isfinite(gradient).all()
