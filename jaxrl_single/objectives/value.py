"""The loss of the critic."""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def value_loss(values: jax.Array, returns: jax.Array, action_mask: jax.Array) -> jax.Array:
    """(V - G)^2 per token, without a factor of one half.

    See "SAO" (arXiv 2607.07508), §3.2: observation tokens are excluded.

    Args:
      values: per token, of the critic; carries the gradient.
      returns: per token, the targets; stop-gradient.
      action_mask: bool per token. Where False the others may hold anything.

    Returns:
      per_token_loss: float32, 0 where action_mask is False.
    """
    targets = jax.lax.stop_gradient(masked.clean(returns, action_mask))
    return jnp.square(masked.clean(values, action_mask) - targets)
