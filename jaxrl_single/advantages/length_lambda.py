"""The lambda of GAE as a function of a trajectory's length."""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def length_adaptive_lambda(lengths: jax.Array, *, alpha: float) -> jax.Array:
    """max(0, 1 - 1 / (alpha l)): the credit of a late reward reaches back over all of the length.

    See "VAPO" (arXiv 2504.05118), alpha 0.05, and "SAO" (arXiv 2607.07508), alpha 1.5.

    Args:
      lengths: any shape, action tokens of the trajectory; 0 is taken as 1.
      alpha: > 0. The formula is negative, and therefore clamped, for l < 1 / alpha.

    Returns:
      The shape of `lengths`, float32 in [0, 1).
    """
    lengths = jnp.maximum(masked.as_float(lengths), 1.0)
    return jnp.maximum(1.0 - 1.0 / (alpha * lengths), 0.0)
