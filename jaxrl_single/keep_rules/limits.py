"""Limits on a quantity of whole trajectories: which tokens belong to one that obeys.

The rules that accept or reject a trajectory as a whole are made of these. A trajectory without
counted tokens obeys every limit. A limit of infinity switches it off.
"""

import math
from decimal import Decimal

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked, segments


def all_within(
    x: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    limit: float,
) -> jax.Array:
    """Whether x <= limit on every counted token of the token's trajectory.

    Args:
      x: per token; NaN on a counted token obeys no limit.
      action_mask: bool per token: which tokens count.
      trajectory_index: i32 per token, -1 on padding.
      num_trajectories: N, static.
      limit: the largest value that is accepted.

    Returns:
      bool per token; False where action_mask is False.
    """
    beyond = ~(masked.clean(x, action_mask) <= limit)
    count = segments.trajectory_sums(beyond, action_mask, trajectory_index, num_trajectories)
    return segments.spread(count == 0, trajectory_index) & action_mask


def mean_within(
    x: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    limit: float,
) -> jax.Array:
    """Whether the mean of x over the counted tokens of the token's trajectory is <= limit.

    Arguments and result as of `all_within`.
    """
    sums = segments.trajectory_sums(x, action_mask, trajectory_index, num_trajectories)
    lengths = segments.lengths(action_mask, trajectory_index, num_trajectories)
    means = sums / jnp.maximum(lengths, 1.0)
    return segments.spread(means <= limit, trajectory_index) & action_mask


def log_bound(bound: float) -> float:
    """The bound of a ratio as one of its logarithm; -infinity for bounds at or below 0.

    Ratios are compared by their logarithms, which neither overflow nor move a token that lies
    exactly on a bound, as rounding in exp does.
    """
    return math.log(bound) if bound > 0 else -math.inf


def around_one(low: float, high: float) -> tuple[float, float]:
    """1 - low and 1 + high as decimals: in binary 1 - 0.8 is 0.19999999999999996, not 0.2."""
    return float(1 - Decimal(repr(float(low)))), float(1 + Decimal(repr(float(high))))
