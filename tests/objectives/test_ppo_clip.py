"""PPO's clip: worked numbers for both signs, the gradient through the ratio, garbage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import ppo_clip

RATIOS = jnp.array([0.7, 1.1, 1.5])
ALL = jnp.ones(3, bool)


@jax.jit
def total_loss(policy, rollout, advantages, keep, mask):
    per_token, weights, metrics = ppo_clip.ppo_clip(
        policy, rollout, advantages, keep, mask, low=0.2, high=0.28
    )
    return jnp.sum(per_token), (per_token, weights, metrics)


def run(advantage, *, policy=None, keep=None, mask=ALL):
    policy = jnp.log(RATIOS) if policy is None else policy
    keep = jnp.ones(3) if keep is None else keep
    (_, (per_token, weights, metrics)), gradient = jax.value_and_grad(total_loss, has_aux=True)(
        policy, jnp.zeros(3), jnp.full(3, advantage), keep, mask
    )
    np.testing.assert_allclose(weights * advantage, -gradient, rtol=1e-6)
    return -per_token, -gradient, metrics["policy/clip_fraction"]


@pytest.mark.parametrize(
    ("advantage", "objective", "coefficient", "clipped"),
    [
        (1.0, [0.7, 1.1, 1.28], [0.7, 1.1, 0.0], 1),
        (-1.0, [-0.8, -1.1, -1.5], [0.0, -1.1, -1.5], 1),
        (0.0, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 0),
    ],
)
def test_golden_clip_higher(advantage, objective, coefficient, clipped):
    got, gradient, (count, weight) = run(advantage)
    np.testing.assert_allclose(got, objective, rtol=1e-6)
    np.testing.assert_allclose(gradient, coefficient, rtol=1e-6)
    assert (count, weight) == (clipped, 3)


def test_keep_scales_value_and_gradient():
    got, gradient, (count, _) = run(1.0, keep=jnp.array([0.0, 0.5, 0.0]))
    np.testing.assert_allclose(got, [0.0, 0.55, 0.0], rtol=1e-6)
    np.testing.assert_allclose(gradient, [0.0, 0.55, 0.0], rtol=1e-6)
    assert count == 0  # the clipped token was dropped


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 300.0])
def test_garbage_under_the_mask_is_bit_identical(garbage):
    mask = jnp.array([True, True, False])
    clean = run(1.0, mask=mask)
    dirty = run(1.0, policy=jnp.log(RATIOS).at[2].set(garbage), mask=mask)
    for before, after in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(after, before)
    assert clean[1][2] == 0.0


def test_advantages_and_keep_are_stop_gradient():
    gradients, _ = jax.grad(total_loss, argnums=(2, 3), has_aux=True)(
        jnp.log(RATIOS), jnp.zeros(3), jnp.ones(3), jnp.ones(3), ALL
    )
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, np.zeros(3))
