"""IcePop: drops tokens on which engine and trainer disagree about the same weights."""

import jax
import jax.numpy as jnp

from jaxrl_single.keep_rules import limits
from jaxrl_single.ops import masked


def icepop(
    engine_log_ratio: jax.Array, action_mask: jax.Array, *, low: float, high: float
) -> jax.Array:
    """1 where low <= trainer / engine <= high, else 0: a closed band.

    See "Every Step Evolves" (arXiv 2510.18855). There the ratio k of the sampled token, both under
    the weights that sampled it, also multiplies PPO's clipped objective: that factor is
    `corrections.engine_ratio`. Published: low 0.5 and high 5.

    Args:
      engine_log_ratio: per token, log(trainer / engine); anything where action_mask is False.
      action_mask: bool per token.
      low: smallest ratio kept; at 0 nothing is dropped on this side.
      high: largest ratio kept.

    Returns:
      keep: float32 in {0, 1} per token, stop-gradient; 0 where action_mask is False.
    """
    log_ratio = jax.lax.stop_gradient(masked.clean(engine_log_ratio, action_mask))
    inside = (log_ratio >= limits.log_bound(low)) & (log_ratio <= limits.log_bound(high))
    return (inside & action_mask).astype(jnp.float32)
