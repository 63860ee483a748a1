"""Between tokens of a flat stream and the trajectories that own them.

`trajectory_index` is 0..N-1 on tokens of a trajectory and -1 on padding. Arrays per token may have
any shape: [T] or packed [B, T] alike.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def trajectory_sums(
    x: jax.Array, mask: jax.Array, trajectory_index: jax.Array, num_trajectories: int
) -> jax.Array:
    """Sum of `x` over the counted tokens of each trajectory.

    Args:
      x: per token.
      mask: bool per token: which tokens count. Padding never does.
      trajectory_index: i32 per token.
      num_trajectories: N, static.

    Returns:
      [N] float32; 0 for a trajectory without counted tokens.
    """
    counted = mask & (trajectory_index >= 0)
    # What does not count is 0 from here on, so it may fall into any bucket, padding too.
    x, bucket = masked.clean(x, counted), jnp.maximum(trajectory_index, 0)
    return jax.ops.segment_sum(x.reshape(-1), bucket.reshape(-1), num_trajectories)


def lengths(mask: jax.Array, trajectory_index: jax.Array, num_trajectories: int) -> jax.Array:
    """Number of counted tokens of each trajectory, [N] float32."""
    return trajectory_sums(jnp.ones(mask.shape), mask, trajectory_index, num_trajectories)


def spread(per_trajectory: jax.Array, trajectory_index: jax.Array) -> jax.Array:
    """Gives each token the entry of its trajectory; 0 on padding.

    Args:
      per_trajectory: [N].
      trajectory_index: i32 per token.

    Returns:
      The shape of `trajectory_index`, the dtype of `per_trajectory`.
    """
    owned = trajectory_index >= 0
    values = per_trajectory[jnp.where(owned, trajectory_index, 0)]
    return jnp.where(owned, values, jnp.zeros_like(values))
