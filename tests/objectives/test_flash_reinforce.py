"""FlashREINFORCE, put together from its parts, on a worked batch of three trajectories."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.advantages import baselines
from jaxrl_single.keep_rules import flash
from jaxrl_single.objectives import sao
from jaxrl_single.ops import reduce, segments

REWARD = np.array([1.0, 0.0, 1.0])
# Rows of two, three and one action tokens between observation tokens, packed, then padding.
INDEX = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, -1], np.int32)
MASK = np.array([True, False, True, True, True, False, True, True, False, False])
ROLLOUT = np.array([0.5, 0.6, 0.8, 0.2, 0.9, 0.1, 0.6, 0.7, 0.4, 1.0])
POLICY = np.array([0.52, 0.1, 0.79, 0.5, 0.9, 0.9, 0.55, 0.72, 0.2, 1.0])
GRADIENT = np.zeros(10)
GRADIENT[[0, 2, 7]] = -0.057777778, -0.054861111, -0.114285714
VALID = np.ones(3, bool)


def loss(policy, rollout, advantages, delta=3e-3):
    keep = flash.flash_trust_region(policy, rollout, MASK, INDEX, 3, delta=delta)
    advantages = segments.spread(advantages, INDEX)
    per_token, weights, _ = sao.sao(policy, rollout, advantages, keep, MASK)
    lengths = segments.spread(segments.lengths(MASK, INDEX, 3), INDEX)
    size = reduce.denominator("sequence_mean", num_tokens=6, num_trajectories=3)
    reduced = reduce.sequence_mean(per_token, MASK, trajectory_lengths=lengths, denominator=size)
    return reduced, (keep, weights)


compiled = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnames="delta")


def arrays(reward=REWARD):
    """Log-probs and advantages of the batch."""
    advantages = baselines.batch_mean(jnp.asarray(reward), VALID)
    return jnp.log(jnp.asarray(POLICY)), jnp.log(jnp.asarray(ROLLOUT)), advantages


@pytest.mark.parametrize(("x64", "rtol"), [(False, 2e-6), (True, 1e-8)])
def test_golden_value_gradient_and_admission(x64, rtol):
    """Advantages 1/3, -2/3, 1/3; the second row, of mean KL 0.066, is rejected, and stays in the
    mean of the rewards and in the denominator. Gradient -A ratio / (3 x tokens of the row)."""
    with jax.enable_x64(x64):
        (value, (keep, _)), gradient = compiled(*arrays())
    np.testing.assert_array_equal(keep, MASK & (INDEX != 1))
    np.testing.assert_allclose(value, 0.0882577291872, rtol=rtol)
    np.testing.assert_allclose(gradient, GRADIENT, rtol=rtol, atol=1e-9)


def test_without_a_limit_the_ratio_is_not_clipped():
    """delta = inf admits all rows: the token of ratio 2.5 weighs 2.5."""
    (_, (keep, weights)), gradient = compiled(*arrays(), delta=np.inf)
    np.testing.assert_array_equal(keep, MASK)
    np.testing.assert_allclose(weights[3], 2.5, rtol=1e-6)
    np.testing.assert_allclose(gradient[3], 2.5 * (2 / 3) / 9, rtol=1e-5)


def test_equal_rewards_give_exactly_no_gradient():
    _, gradient = compiled(*arrays(np.full(3, 0.7)), delta=np.inf)
    np.testing.assert_array_equal(gradient, np.zeros(10))


def test_leave_one_out_is_the_same_direction_with_another_length():
    """B / (B - 1) = 1.5 times the batch mean's."""
    policy, rollout, _ = arrays()
    others = jnp.array([1.0 - 0.5, 0.0 - 1.0, 1.0 - 0.5])
    _, gradient = compiled(policy, rollout, others)
    np.testing.assert_allclose(gradient, 1.5 * GRADIENT, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 50.0])
def test_garbage_under_the_mask_is_bit_identical(garbage):
    policy, rollout, advantages = arrays()
    clean = compiled(policy, rollout, advantages)
    dirty = compiled(
        jnp.where(MASK, policy, garbage), jnp.where(MASK, rollout, garbage), advantages
    )
    for before, after in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(after, before)


def test_a_rejected_row_with_an_overflowing_ratio_is_finite():
    policy, rollout, advantages = arrays()
    (value, _), gradient = compiled(policy, rollout.at[3].set(-500.0), advantages)
    np.testing.assert_allclose(value, 0.0882577291872, rtol=2e-6)
    np.testing.assert_allclose(gradient, GRADIENT, rtol=2e-6, atol=1e-9)
