"""The importance-weighted score function: value, gradient, what is stopped, garbage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.keep_rules import dis
from jaxrl_single.objectives import sao

ROLLOUT = jnp.log(jnp.array([0.5, 0.2, 0.05]))
POLICY = jnp.log(jnp.array([0.4, 0.3, 0.5]))
ADVANTAGES = jnp.array([1.0, -0.5, 2.0])
ALL = jnp.ones(3, bool)
GARBAGE = (np.nan, np.inf, -np.inf, 3e38, -1e4)


@jax.jit
def mean_loss(policy, rollout, advantages, keep, mask):
    per_token, weights, _ = sao.sao(policy, rollout, advantages, keep, mask)
    return jnp.sum(per_token) / 3, weights


def test_golden_value_and_gradient():
    """Ratios .8, 1.5 and 10, which DIS drops: weights w = .8, 1.5, 0; gradient -w A / 3."""
    keep = dis.dis(POLICY - ROLLOUT, ALL, low=0.3, high=5.0)
    (loss, weights), gradient = jax.value_and_grad(mean_loss, has_aux=True)(
        POLICY, ROLLOUT, ADVANTAGES, keep, ALL
    )
    np.testing.assert_allclose(loss, -0.056649005915, rtol=1e-6)
    np.testing.assert_allclose(gradient, [-0.8 / 3, 1.5 * 0.5 / 3, 0.0], rtol=1e-6)
    np.testing.assert_allclose(weights, [0.8, 1.5, 0.0], rtol=1e-6)


def test_ratio_is_stop_gradient():
    """Differentiating the ratio too multiplies by 1 + log pi and turns token 2's sign."""
    wrong = np.array([-0.022322472, -0.050993201, 0.0])
    keep = jnp.array([1.0, 1.0, 0.0])
    gradient, _ = jax.grad(mean_loss, has_aux=True)(POLICY, ROLLOUT, ADVANTAGES, keep, ALL)
    assert np.abs(gradient - wrong).max() > 0.2
    assert gradient[1] > 0.0 > wrong[1]


def test_only_policy_logprobs_carry_a_gradient():
    keep = jnp.array([1.0, 1.0, 1.0])
    gradients, _ = jax.grad(mean_loss, argnums=(1, 2, 3), has_aux=True)(
        POLICY, ROLLOUT, ADVANTAGES, keep, ALL
    )
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, np.zeros(3))


def test_soft_keep_scales_the_coefficient():
    keep = jnp.array([0.5, 0.25, 0.1])
    gradient, _ = jax.grad(mean_loss, has_aux=True)(POLICY, ROLLOUT, ADVANTAGES, keep, ALL)
    np.testing.assert_allclose(gradient, [-0.4 / 3, 0.1875 / 3, -2.0 / 3], rtol=1e-6)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_under_the_mask_is_bit_identical(garbage):
    mask = jnp.array([True, False, True])
    inputs = (POLICY, ROLLOUT, ADVANTAGES, jnp.ones(3))
    dirty = [x.at[1].set(garbage) for x in inputs]
    clean = jax.value_and_grad(mean_loss, has_aux=True)(*inputs, mask)
    for before, after in zip(
        jax.tree.leaves(clean),
        jax.tree.leaves(jax.value_and_grad(mean_loss, has_aux=True)(*dirty, mask)),
        strict=True,
    ):
        np.testing.assert_array_equal(after, before)
    assert clean[1][1] == 0.0


def test_dropped_token_with_an_overflowing_ratio_is_finite():
    rollout = ROLLOUT.at[2].set(-500.0)
    keep = jnp.array([1.0, 1.0, 0.0])
    (loss, _), gradient = jax.value_and_grad(mean_loss, has_aux=True)(
        POLICY, rollout, ADVANTAGES, keep, ALL
    )
    np.testing.assert_allclose(loss, -0.056649005915, rtol=1e-6)
    np.testing.assert_allclose(gradient[2], 0.0)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_on_a_trained_token_surfaces_even_if_dropped(which):
    arrays = [POLICY, ROLLOUT, ADVANTAGES]
    arrays[which] = arrays[which].at[2].set(jnp.nan)
    loss, _ = mean_loss(*arrays, jnp.array([1.0, 1.0, 0.0]), ALL)
    assert jnp.isnan(loss)


def test_loss_is_float32_for_bfloat16_logprobs():
    per_token, _, _ = sao.sao(
        POLICY.astype(jnp.bfloat16), ROLLOUT.astype(jnp.bfloat16), ADVANTAGES, jnp.ones(3), ALL
    )
    assert per_token.dtype == jnp.float32


def test_vmap_over_rows_equals_rows():
    stack = [jnp.stack([x, x + 0.1]) for x in (POLICY, ROLLOUT, ADVANTAGES, jnp.ones(3))]
    masks = jnp.array([[True, False, True], [True, True, True]])
    together, _, _ = sao.sao(*stack, masks)
    mapped, _, _ = jax.vmap(sao.sao)(*stack, masks)
    np.testing.assert_allclose(mapped, together, rtol=1e-6)
