"""Advantages per trajectory from rewards alone, [N] to [N]; no critic.

`valid` marks the real trajectories of a padded batch. Entries that are not valid may hold anything
and get advantage 0. All results are float32 and stop-gradient.
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def batch_mean(reward: jax.Array, valid: jax.Array) -> jax.Array:
    """A_i = R_i - mean of all R, itself included.

    Williams' REINFORCE with a batch baseline. Including R_i scales the expected gradient by
    (N - 1) / N and biases it in no other way.

    Args:
      reward: [N].
      valid: bool [N].
    """
    chex.assert_rank([reward, valid], 1)
    reward = masked.clean(reward, valid)
    return jax.lax.stop_gradient(masked.clean(reward - masked.mean(reward, valid), valid))


def group_normalised(
    reward: jax.Array, group: jax.Array, valid: jax.Array, *, eps: float
) -> jax.Array:
    """A_i = (R_i - mean of its group) / (population std of its group + eps).

    A group whose rewards are all equal gets exactly 0, not rounding noise over eps.
    See "DeepSeekMath" (arXiv 2402.03300), §4.1.2, for GRPO.

    Args:
      reward: [N].
      group: i32 [N], trajectories of the same task share a number.
      valid: bool [N].
      eps: >= 0, added to the standard deviation.
    """
    chex.assert_rank([reward, group, valid], 1)
    reward = masked.clean(reward, valid)
    same = (group[:, None] == group[None, :]) & valid[:, None] & valid[None, :]
    size = jnp.maximum(jnp.sum(same, axis=1, dtype=jnp.float32), 1.0)
    member = jnp.where(same, reward[None, :], reward[:, None])
    constant = jnp.min(member, axis=1) == jnp.max(member, axis=1)
    centred = reward - jnp.sum(jnp.where(same, reward[None, :], 0.0), axis=1) / size
    square = jnp.where(same, jnp.square(centred)[None, :], 0.0)
    std = jnp.sqrt(jnp.sum(square, axis=1) / size)
    zero = constant | ~valid
    advantages = jnp.where(zero, 0.0, centred / jnp.where(zero, 1.0, std + eps))
    return jax.lax.stop_gradient(advantages)
