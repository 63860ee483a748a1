"""The clip of PPO as a keep rule: drops tokens that already moved far enough their way."""

import jax
import jax.numpy as jnp

from jaxrl_single.keep_rules import limits
from jaxrl_single.ops import masked


def ppo_clip(
    log_ratio: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    low: float,
    high: float,
) -> jax.Array:
    """0 where A > 0 and ratio > 1 + high, or A < 0 and ratio < 1 - low; else 1.

    Times ratio x A this is the gradient of the clipped objective of "Proximal Policy Optimization
    Algorithms" (arXiv 1707.06347), eq. 7. Published: 0.2 on both sides; 0.28 above in DAPO (arXiv
    2503.14476).

    Args:
      log_ratio: per token, log(policy / rollout); anything where action_mask is False.
      advantages: per token.
      action_mask: bool per token.
      low, high: >= 0.

    Returns:
      keep: float32 in {0, 1} per token, stop-gradient; 0 where action_mask is False.
    """
    lowest, highest = limits.around_one(low, high)
    return clip(
        log_ratio,
        advantages,
        action_mask,
        log_low=limits.log_bound(lowest),
        log_high=limits.log_bound(highest),
    )


def clip(
    log_ratio: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    log_low: float | jax.Array,
    log_high: float | jax.Array,
) -> jax.Array:
    """As `ppo_clip`, with bounds on the log-ratio, which may be arrays."""
    log_ratio = jax.lax.stop_gradient(masked.clean(log_ratio, action_mask))
    advantages = jax.lax.stop_gradient(masked.clean(advantages, action_mask))
    drop = ((advantages > 0) & (log_ratio > log_high)) | ((advantages < 0) & (log_ratio < log_low))
    # NaN is dropped too, as the other rules do.
    return (~drop & ~jnp.isnan(log_ratio) & action_mask).astype(jnp.float32)
