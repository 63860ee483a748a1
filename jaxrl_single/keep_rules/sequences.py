"""Keep rules that accept or reject a whole trajectory by the ratios of its tokens.

Limits on single tokens do not bound how far a long sequence moved. See the rollout correction of
verl (https://verl.readthedocs.io/en/latest/algo/rollout_corr.html). `log_ratio` is
log(policy / rollout) per token and may hold anything where `action_mask` is False. All return keep
in {0, 1} per token, float32, stop-gradient, 0 where `action_mask` is False. Bounds are closed.
"""

import math

import jax
import jax.numpy as jnp

from jaxrl_single.keep_rules import limits
from jaxrl_single.ops import masked, segments


def sequence_mis(
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    cap: float,
) -> jax.Array:
    """1 where the product of the trajectory's ratios is <= cap.

    The weight of masked importance sampling is this times `corrections.sequence_ratio`. Usual caps
    are 2 to 10.
    """
    log_ratio = jax.lax.stop_gradient(masked.clean(log_ratio, action_mask))
    # In log space, where a product over a long trajectory does not overflow.
    sums = segments.trajectory_sums(log_ratio, action_mask, trajectory_index, num_trajectories)
    inside = segments.spread(sums <= math.log(cap), trajectory_index) & action_mask
    return inside.astype(jnp.float32)


def geometric_band(
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    cap: float,
) -> jax.Array:
    """1 where the geometric mean of the trajectory's ratios lies in [1 / cap, cap].

    The geometric mean does not depend on the length. Usual caps are 1.0001 to 1.001.
    """
    log_ratio = jax.lax.stop_gradient(masked.clean(log_ratio, action_mask))
    owners = (action_mask, trajectory_index, num_trajectories)
    below = limits.mean_within(log_ratio, *owners, limit=math.log(cap))
    above = limits.mean_within(-log_ratio, *owners, limit=math.log(cap))
    return (below & above).astype(jnp.float32)


def veto(
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    floor: float,
) -> jax.Array:
    """0 on the whole trajectory where any of its ratios is below the floor; usually 1e-4."""
    log_ratio = jax.lax.stop_gradient(masked.clean(log_ratio, action_mask))
    owners = (action_mask, trajectory_index, num_trajectories)
    inside = limits.all_within(-log_ratio, *owners, limit=-limits.log_bound(floor))
    return inside.astype(jnp.float32)
