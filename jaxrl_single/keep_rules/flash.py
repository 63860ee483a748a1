"""The gates of FlashREINFORCE: a trust region of trajectories, and a filter by entropy.

See https://github.com/yifanzhang-pro/FlashREINFORCE. Dropped tokens and trajectories stay in the
denominators. All return keep in {0, 1} per token, float32, stop-gradient, 0 where `action_mask` is
False, where all other arrays per token may hold anything.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.keep_rules import limits
from jaxrl_single.ops import divergences, masked, segments

EPS = 1e-6  # bounds the probabilities inside the logarithms


def flash_trust_region(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    delta: float,
) -> jax.Array:
    """1 where the mean of kl2(rollout, policy) over the token's trajectory is <= delta.

    kl2 is the KL divergence of the events "this token" and "another token".

    Args:
      policy_logprobs, rollout_logprobs: per token.
      action_mask: bool per token.
      trajectory_index: i32 per token.
      num_trajectories: N, static.
      delta: nats; published 3e-3 and 1e-3, infinity switches the gate off.
    """
    policy = jax.lax.stop_gradient(masked.clean(policy_logprobs, action_mask))
    kl2 = divergences.kl2(masked.clean(rollout_logprobs, action_mask), policy, eps=EPS)
    inside = limits.mean_within(kl2, action_mask, trajectory_index, num_trajectories, limit=delta)
    return inside.astype(jnp.float32)


def entropy_filter(
    entropies: jax.Array,
    reward: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    fraction: float,
) -> jax.Array:
    """Of failed trajectories keeps the ceil(fraction x length) tokens of highest entropy.

    Failed means reward <= 0. Of equal entropies the earlier token comes first.

    Args:
      entropies: per token, nats.
      reward: [N].
      action_mask: bool per token.
      trajectory_index: i32 per token.
      num_trajectories: N, static.
      fraction: in [0, 1]; published 1 (keeps everything) and 0.9.
    """
    counted = action_mask & (trajectory_index >= 0)
    lengths = segments.lengths(counted, trajectory_index, num_trajectories)
    # Spread as allowances, which no trajectory that succeeded exhausts.
    allowed = jnp.where(reward <= 0, jnp.ceil(fraction * lengths), lengths)
    rank = _rank_from_highest(entropies, counted, trajectory_index, lengths)
    keep = (rank < segments.spread(allowed, trajectory_index)) & counted
    return jax.lax.stop_gradient(keep.astype(jnp.float32))


def flash_filtered(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    entropies: jax.Array,
    reward: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    delta: float,
    fraction: float,
) -> jax.Array:
    """Both gates: `flash_trust_region` times `entropy_filter`."""
    owners = (action_mask, trajectory_index, num_trajectories)
    admitted = flash_trust_region(policy_logprobs, rollout_logprobs, *owners, delta=delta)
    return admitted * entropy_filter(entropies, reward, *owners, fraction=fraction)


def _rank_from_highest(
    x: jax.Array, counted: jax.Array, trajectory_index: jax.Array, lengths: jax.Array
) -> jax.Array:
    """Place of each counted token among those of its trajectory, 0 for the highest x.

    Args:
      x, counted, trajectory_index: per token.
      lengths: [N], counted tokens of each trajectory.
    """
    x = masked.clean(x, counted).reshape(-1)
    owner = jnp.where(counted, trajectory_index, lengths.size).reshape(-1)
    order = jnp.lexsort((-x, owner))  # stable: equal ones stay in the order of the stream
    # As integers: float32 cannot number the tokens of a large batch.
    lengths = lengths.astype(jnp.int32)
    starts = jnp.cumsum(lengths) - lengths
    place = jnp.zeros(x.size, jnp.int32).at[order].set(jnp.arange(x.size, dtype=jnp.int32))
    start = segments.spread(starts, trajectory_index).reshape(-1)
    return (place - start).reshape(counted.shape)
