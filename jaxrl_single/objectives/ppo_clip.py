"""PPO's clipped objective, with two clip ranges."""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def ppo_clip(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    *,
    low: float,
    high: float,
) -> tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
    """-sg(keep) min(ratio A, clip(ratio, 1 - low, 1 + high) A) per token.

    See "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), eq. 7; a larger `high` is
    DAPO's clip-higher (arXiv 2503.14476). The gradient flows through the ratio, so its coefficient
    on the score is ratio x A where the clip is not active.

    Decoupled PPO ("AReaL", arXiv 2505.24298) is the same with proximal log-probs in place of the
    rollout's and proximal / rollout as a factor of `keep`.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs: per token, of the distribution in the denominator of the ratio.
      advantages: per token.
      keep: per token in [0, 1], from a keep rule.
      action_mask: bool per token. Where False all others may hold anything.
      low, high: >= 0, the clip range is [1 - low, 1 + high].

    Returns:
      per_token_loss: 0 where action_mask is False.
      weights: ratio x keep per token where the clip is not active, else 0; stop-gradient.
      metrics: (sum, weight) pairs by name.
    """
    ratio = masked.ratio(masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask))
    return clipped(ratio, advantages, keep, action_mask, low=low, high=high)


def clipped(
    ratio: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    *,
    low: float,
    high: float,
) -> tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
    """`ppo_clip` of a ratio that carries the gradient and is finite where action_mask is False."""
    advantages = jax.lax.stop_gradient(masked.clean(advantages, action_mask))
    keep = jax.lax.stop_gradient(masked.clean(keep, action_mask))
    free = ratio * advantages
    bounded = jnp.clip(ratio, 1.0 - low, 1.0 + high) * advantages
    is_clipped = bounded < free
    num_clipped = masked.total(is_clipped & (keep > 0), action_mask)
    metrics = {"policy/clip_fraction": (num_clipped, masked.count(action_mask))}
    weights = jax.lax.stop_gradient(jnp.where(is_clipped, 0.0, ratio) * keep)
    return -keep * jnp.minimum(free, bounded), weights, jax.lax.stop_gradient(metrics)
