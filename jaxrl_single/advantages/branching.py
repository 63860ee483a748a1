"""Branching Policy Optimization: compare trajectories that were forked from one state.

A branch point is a place of a trajectory (the parent) where snapshots of the environment were
continued anew. Its siblings are the parent itself and all children forked there:

    A_k = R_k - mean of R over the other siblings,   on the tokens after the branch point

Each token follows the latest branch point of its trajectory at or before it. Nothing is credited to
what siblings share: their mean knows nothing about the actions that led to the branch point. There
a child gets 0 (its tokens are copies) and a backbone, a trajectory without a parent, gets
R - mean of R over the backbones.
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.ops import grouping, masked, segments


def branching(
    reward: jax.Array,
    valid: jax.Array,
    parent: jax.Array,
    fork_index: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    token_index: jax.Array,
) -> jax.Array:
    """Advantages per token. A child may have children of its own.

    See "Branching Policy Optimization" (arXiv 2607.14171). Unbiased only if a snapshot really
    resumes the same state and the children sample from the policy itself.

    Args:
      reward: [N].
      valid: bool [N]. What is not valid is no sibling; without another sibling there is no branch
        point. Where False, all else may hold anything.
      parent: i32 [N], the trajectory that it was forked from, -1 for a backbone.
      fork_index: i32 [N], its first own token, counted within the trajectory.
      action_mask: bool per token.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding.
      token_index: i32 per token, its place within the trajectory.

    Returns:
      The shape of action_mask, at least float32, stop-gradient, 0 where action_mask is False.
    """
    chex.assert_rank([reward, valid, parent, fork_index], 1)
    chex.assert_equal_shape([action_mask, trajectory_index, token_index])
    reward = masked.clean(reward, valid)
    owner, place, advantage = _branch_points(reward, valid, parent, fork_index)
    backbone = valid & (parent < 0)
    first = masked.clean(reward - masked.mean(reward, backbone), backbone)

    stream = (trajectory_index.reshape(-1), token_index.reshape(-1))
    latest = _latest(owner, place, *stream).reshape(action_mask.shape)
    before = segments.spread(first, trajectory_index)
    advantages = jnp.where(latest >= 0, advantage[jnp.maximum(latest, 0)], before)
    return jax.lax.stop_gradient(masked.clean(advantages, action_mask & (trajectory_index >= 0)))


def _branch_points(
    reward: jax.Array, valid: jax.Array, parent: jax.Array, fork_index: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """From which token on which trajectory gets which advantage.

    Each child gives two entries: its own, and its parent's at the same branch point (equal for all
    children of the point).

    Returns:
      owner: i32 [2N], the trajectory; -2 for an entry that stands for nothing.
      place: i32 [2N], the first token.
      advantage: [2N].
    """
    is_child = valid & (parent >= 0)
    origin = jnp.maximum(parent, 0)
    point, first = grouping.label((parent, fork_index), is_child)
    parent_counts = first & valid[origin]  # once a branch point, however many its children
    siblings = jnp.concatenate([reward, reward[origin]])
    points, counts = jnp.tile(point, 2), jnp.concatenate([is_child, parent_counts])
    advantage = grouping.against_others(siblings, points, counts)
    own, of_parent = jnp.split(advantage, 2)
    of_parent = jax.ops.segment_sum(of_parent, point, point.size)[point]
    size = jax.ops.segment_sum(masked.as_float(counts), points, point.size)[point]
    has_parent = is_child & valid[origin]
    number = jnp.arange(parent.size)
    owner = jnp.concatenate(
        [jnp.where(is_child & (size > 1), number, -2), jnp.where(has_parent, parent, -2)]
    )
    return owner, jnp.tile(fork_index, 2), jnp.concatenate([own, of_parent])


def _latest(
    owner: jax.Array, place: jax.Array, trajectory_index: jax.Array, token_index: jax.Array
) -> jax.Array:
    """For each token the latest entry [2N] of its trajectory at or before it, i32 [T]; -1 if none.

    At one place the later entry counts: a trajectory's own children come after its birth.
    """
    num_entries, num_tokens = owner.size, trajectory_index.size
    # Tokens come after all entries of their place.
    entry = jnp.arange(num_entries + num_tokens, dtype=jnp.int32)
    owners = jnp.concatenate([owner, trajectory_index])
    order = jnp.lexsort((entry, jnp.concatenate([place, token_index]), owners))
    owners, entry = owners[order], entry[order]
    last = jax.lax.cummax(jnp.where(entry < num_entries, jnp.arange(entry.size), -1))
    same = (last >= 0) & (owners[jnp.maximum(last, 0)] == owners)
    found = jnp.where(same, entry[jnp.maximum(last, 0)], -1)
    return jnp.zeros(entry.size, jnp.int32).at[order].set(found)[num_entries:]
