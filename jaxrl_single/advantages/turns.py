"""Turns of a packed stream: from tokens to turns and back.

A turn is one action: the tokens of one trajectory that the policy sampled under one `turn_id`. A
stream of T tokens holds at most T turns, so arrays per turn have T rows: the turns in the order of
the stream, then rows without a turn.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turns:
    """Where the turns of a stream are.

    Attributes:
      counted: bool per token, the action tokens; the others belong to no turn.
      row: i32 per token, row of its turn; 0 where not counted.
      exists: bool [T], whether the row holds a turn.
      first, last: i32 [T], place in the flat stream of the turn's first and last action token; 0
        in rows without a turn.
      trajectory: i32 [T], -1 in rows without a turn.
    """

    counted: jax.Array
    row: jax.Array
    exists: jax.Array
    first: jax.Array
    last: jax.Array
    trajectory: jax.Array


def find(action_mask: jax.Array, trajectory_index: jax.Array, turn_ids: jax.Array) -> Turns:
    """The turns of a stream.

    Args:
      action_mask: bool per token, in any shape whose row-major order is the stream.
      trajectory_index: i32 per token, -1 on padding; trajectories are contiguous.
      turn_ids: i32 per token, in order within a trajectory; anything where action_mask is False.
    """
    shape, size = action_mask.shape, action_mask.size
    counted = (action_mask.astype(bool) & (trajectory_index >= 0)).reshape(-1)
    trajectory, turn = trajectory_index.reshape(-1), turn_ids.reshape(-1)
    place = jnp.arange(size, dtype=jnp.int32)
    # Compared with the action token before: what lies between must not cut a turn in two.
    latest = jax.lax.cummax(jnp.where(counted, place, -1))
    before = jnp.concatenate([jnp.full(1, -1, latest.dtype), latest[:-1]])
    goes_on = (before >= 0) & (trajectory[before] == trajectory) & (turn[before] == turn)
    starts = counted & ~goes_on
    row = jnp.where(counted, jnp.cumsum(starts, dtype=jnp.int32) - 1, 0)
    exists = place < jnp.sum(starts, dtype=jnp.int32)
    first = jax.ops.segment_min(jnp.where(counted, place, size), row, size)
    last = jax.ops.segment_max(jnp.where(counted, place, 0), row, size)
    first, last = jnp.where(exists, first, 0), jnp.where(exists, last, 0)
    return Turns(
        counted=counted.reshape(shape),
        row=row.reshape(shape),
        exists=exists,
        first=first,
        last=last,
        trajectory=jnp.where(exists, trajectory[first], -1),
    )


def sums(x: jax.Array, turns: Turns) -> jax.Array:
    """Sum of `x` over the action tokens of each turn, [T]; 0 in rows without a turn."""
    x = masked.clean(x, turns.counted)
    return jax.ops.segment_sum(x.reshape(-1), turns.row.reshape(-1), turns.exists.size)


def means(x: jax.Array, turns: Turns) -> jax.Array:
    """Mean of `x` over the action tokens of each turn, [T]; 0 in rows without a turn."""
    return sums(x, turns) / jnp.maximum(sums(jnp.ones(turns.counted.shape), turns), 1.0)


def spread(per_turn: jax.Array, turns: Turns) -> jax.Array:
    """Gives each action token the entry of its turn, in at least float32; 0 elsewhere."""
    return masked.clean(per_turn[turns.row], turns.counted)
