"""Auxiliary losses: a loss per token and the mask of the tokens over which it is averaged.

The composition adds coefficient x sum of the loss / number of masked tokens in the whole update; a
mask without a token gives 0. No mask depends on the policy. Losses are 0 where the mask is False,
where the floats that they are made of may hold anything.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked, segments


def positive_nll(
    policy_logprobs: jax.Array,
    reward: jax.Array,
    trajectory_index: jax.Array,
    action_mask: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """-log pi on the tokens of trajectories with a positive reward.

    See "VAPO" (arXiv 2504.05118), §4.3, with coefficient 0.1.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      reward: [N], of the trajectories.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding.
      action_mask: bool per token.
    """
    mask = action_mask & segments.spread(reward > 0, trajectory_index)
    return -masked.clean(policy_logprobs, mask), mask


def reference_kl(
    policy_logprobs: jax.Array, ref_logprobs: jax.Array, action_mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """exp(ref - pi) - (ref - pi) - 1 of the log-probs: never negative, 0 where they agree.

    See "DeepSeekMath" (arXiv 2402.03300), eq. 4. On tokens of the current policy its mean is
    KL(policy || reference), and the mean of its gradient is that of KL(reference || policy): the
    derivative of the log-prob leaves out how the policy chooses the tokens.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      ref_logprobs: per token, of the frozen reference policy; stop-gradient.
      action_mask: bool per token.
    """
    ref_logprobs = jax.lax.stop_gradient(ref_logprobs)
    gap = masked.safe_log_ratio(ref_logprobs, policy_logprobs, action_mask)
    # Limited in both places: with an unlimited second one its gradient alone would be left, which
    # has the wrong sign.
    gap = jnp.minimum(gap, masked.MAX_LOG_RATIO)
    return jnp.expm1(gap) - gap, action_mask


def entropy_bonus(
    policy_entropies: jax.Array, action_mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Minus the entropy: a positive coefficient rewards a broad distribution.

    Args:
      policy_entropies: nats per token, full vocabulary, of the current weights; carries the
        gradient.
      action_mask: bool per token.
    """
    return -masked.clean(policy_entropies, action_mask), action_mask
