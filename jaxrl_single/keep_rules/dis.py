"""DIS, double-sided importance sampling: drops tokens whose ratio left an open interval."""

import jax
import jax.numpy as jnp

from jaxrl_single.keep_rules import limits
from jaxrl_single.ops import masked


def dis(log_ratio: jax.Array, action_mask: jax.Array, *, low: float, high: float) -> jax.Array:
    """1 where 1 - low < policy / rollout < 1 + high, else 0.

    Both sides drop, whatever the sign of the advantage (unlike PPO's clipping). See "SAO" (arXiv
    2607.07508), eqs. 2 and 3. The ratio itself is the objective's business. Published: low 0.3 and
    high 5 for mathematics, 0.8 and 3 for coding.

    Args:
      log_ratio: per token, log(policy / rollout); anything where action_mask is False.
      action_mask: bool, the shape of `log_ratio`.
      low: >= 0; at 1 or more nothing is dropped on this side.
      high: >= 0.

    Returns:
      keep: float32 in {0, 1}, the same shape, stop-gradient; 0 where action_mask is False.
    """
    ratio = masked.ratio(masked.clean(log_ratio, action_mask))
    keep = inside(ratio, low=low, high=high) & action_mask
    return jax.lax.stop_gradient(keep.astype(jnp.float32))


def inside(ratio: jax.Array, *, low: float, high: float) -> jax.Array:
    """Whether a ratio lies in the open interval (1 - low, 1 + high); bool. NaN does not."""
    lowest, highest = limits.around_one(low, high)
    return (ratio > lowest) & (ratio < highest)
