"""Whitening of finished advantages over the batch: mean 0 and standard deviation 1.

The standard deviation is the unbiased one (n - 1), as in SPO. Advantages that are all equal become
exactly 0, not rounding noise over eps. Results are stop-gradient.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def whiten_trajectories(advantages: jax.Array, valid: jax.Array, *, eps: float) -> jax.Array:
    """(A_i - mean) / (std + eps) over trajectories, whatever their lengths.

    See "Single-stream Policy Optimization" (arXiv 2509.13232).

    Args:
      advantages: [N].
      valid: bool [N]; where False, advantages may hold anything and the result is 0.
      eps: >= 0.
    """
    return _whiten(advantages, valid, eps=eps)


def whiten_tokens(advantages: jax.Array, action_mask: jax.Array, *, eps: float) -> jax.Array:
    """(A_t - mean) / (std + eps) over action tokens: a trajectory counts once per token.

    Args:
      advantages: per token.
      action_mask: bool per token; where False, advantages may hold anything and the result is 0.
      eps: >= 0.
    """
    return _whiten(advantages, action_mask, eps=eps)


def _whiten(advantages: jax.Array, mask: jax.Array, *, eps: float) -> jax.Array:
    advantages = masked.clean(advantages, mask)
    lowest = jnp.min(jnp.where(mask, advantages, jnp.inf))
    highest = jnp.max(jnp.where(mask, advantages, -jnp.inf))
    centred = masked.clean(advantages - masked.mean(advantages, mask), mask & (lowest != highest))
    degrees = jnp.maximum(masked.count(mask) - 1.0, 1.0)
    std = jnp.sqrt(masked.total(jnp.square(centred), mask) / degrees)
    return jax.lax.stop_gradient(centred / jnp.where(std > 0, std + eps, 1.0))
