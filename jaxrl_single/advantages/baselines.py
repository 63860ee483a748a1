"""Advantages per trajectory from rewards alone, [N] to [N]; no critic.

`valid` marks the real trajectories of a padded batch. Entries that are not valid may hold anything
and get advantage 0. All results are at least float32 and stop-gradient.
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.ops import grouping, masked


def reward_only(reward: jax.Array, valid: jax.Array) -> jax.Array:
    """A_i = R_i: no baseline, for objectives that have their own.

    Args:
      reward: [N].
      valid: bool [N].
    """
    chex.assert_rank([reward, valid], 1)
    return jax.lax.stop_gradient(masked.clean(reward, valid))


def reward_minus_prompt_value(
    reward: jax.Array, prompt_value: jax.Array, valid: jax.Array
) -> jax.Array:
    """A_i = R_i - V(x_i), the value of the task's prompt.

    The only baseline here that the caller brings; unbiased if V(x_i) does not depend on
    trajectory i.

    Args:
      reward: [N].
      prompt_value: [N].
      valid: bool [N].
    """
    chex.assert_rank([reward, prompt_value, valid], 1)
    advantages = masked.clean(reward, valid) - masked.clean(prompt_value, valid)
    return jax.lax.stop_gradient(advantages)


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


def batch_leave_one_out(reward: jax.Array, valid: jax.Array) -> jax.Array:
    """A_i = R_i - mean of the other R of the batch = N / (N - 1) x `batch_mean`.

    The baseline does not contain R_i, so nothing scales the expected gradient. A batch with a
    single trajectory has nothing to compare with and gets 0.

    Args:
      reward: [N].
      valid: bool [N].
    """
    size = masked.count(valid)
    return batch_mean(reward, valid) * (size / jnp.maximum(size - 1.0, 1.0))


def group_mean(reward: jax.Array, group: jax.Array, valid: jax.Array) -> jax.Array:
    """A_i = R_i - mean of its group, itself included; exactly 0 where the whole group is equal.

    See "Understanding R1-Zero-Like Training" (arXiv 2503.20783), §3.2, Dr.GRPO: the standard
    deviation would weigh a task by how even its rewards are.

    Args:
      reward: [N].
      group: i32 [N], trajectories of the same task share a number.
      valid: bool [N].
    """
    chex.assert_rank([reward, group, valid], 1)
    labels, _ = grouping.label((group,), valid)
    return jax.lax.stop_gradient(grouping.centred(reward, labels, valid))


def leave_one_out(reward: jax.Array, group: jax.Array, valid: jax.Array) -> jax.Array:
    """A_i = R_i - mean of the others of its group; exactly 0 where the whole group is equal.

    A group of one has nothing to compare with. A traced function cannot refuse it, so it gets 0,
    no update; whoever builds the batch should refuse it. See "Back to Basics: Revisiting
    REINFORCE Style Optimization" (arXiv 2402.14740), §3.3, for RLOO.

    Args:
      reward: [N].
      group: i32 [N], trajectories of the same task share a number.
      valid: bool [N].
    """
    chex.assert_rank([reward, group, valid], 1)
    labels, _ = grouping.label((group,), valid)
    return jax.lax.stop_gradient(grouping.against_others(reward, labels, valid))


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
    labels, _ = grouping.label((group,), valid)
    return jax.lax.stop_gradient(grouping.normalised(reward, labels, valid, eps=eps))
