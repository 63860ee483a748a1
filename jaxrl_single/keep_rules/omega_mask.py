"""The one-sided mask of Bellman Policy Optimization."""

import jax
import jax.numpy as jnp

from jaxrl_single.keep_rules import limits
from jaxrl_single.ops import divergences, masked


def omega_mask(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    eps: float,
    low: float,
    high: float,
) -> jax.Array:
    """0 where A < 0 and omega < 1 - low, or A > 0 and omega > 1 + high; else 1.

    omega = (1 + eps - rollout) / (1 + eps - policy), of probabilities. See "Bellman Policy
    Optimization" (arXiv 2609.15987). The objective caps omega; this test is on it uncapped.
    Published: eps 0.1, low 0.2, high 0.28.

    Args:
      policy_logprobs, rollout_logprobs, advantages: per token; anything where action_mask is
        False.
      action_mask: bool per token.
      eps: > 0.
      low, high: >= 0.

    Returns:
      keep: float32 in {0, 1} per token, stop-gradient; 0 where action_mask is False.
    """
    policy = jax.lax.stop_gradient(masked.clean(policy_logprobs, action_mask))
    rollout = masked.clean(rollout_logprobs, action_mask)
    omega = divergences.complement_ratio(policy, rollout, eps=eps)
    advantages = masked.clean(advantages, action_mask)
    lowest, highest = limits.around_one(low, high)
    too_low = (advantages < 0) & (omega < lowest)
    too_high = (advantages > 0) & (omega > highest)
    keep = ~too_low & ~too_high & ~jnp.isnan(omega) & action_mask
    return jax.lax.stop_gradient(keep.astype(jnp.float32))
