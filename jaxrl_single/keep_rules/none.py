"""Keeps every token."""

import jax
import jax.numpy as jnp


def none(log_ratio: jax.Array, action_mask: jax.Array) -> jax.Array:
    """1 on every action token, 0 elsewhere.

    Args:
      log_ratio: per token, gives the shape only.
      action_mask: bool, the shape of `log_ratio`.

    Returns:
      keep: float32, the same shape.
    """
    del log_ratio
    return action_mask.astype(jnp.float32)
