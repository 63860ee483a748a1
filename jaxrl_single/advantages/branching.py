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

from jaxrl_single.ops import masked, segments


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

    trajectory, index = trajectory_index.reshape(-1, 1), token_index.reshape(-1, 1)
    applies = (trajectory == owner[None, :]) & (index >= place[None, :])
    # XLA fuses this into the reduction, so [tokens, 2N] is never stored.
    latest = jnp.max(jnp.where(applies, jnp.arange(owner.size)[None, :], -1), axis=1)
    latest = latest.reshape(action_mask.shape)
    before = segments.spread(first, trajectory_index)
    advantages = jnp.where(latest >= 0, advantage[jnp.maximum(latest, 0)], before)
    return jax.lax.stop_gradient(masked.clean(advantages, action_mask & (trajectory_index >= 0)))


def _branch_points(
    reward: jax.Array, valid: jax.Array, parent: jax.Array, fork_index: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """From which token on which trajectory gets which advantage, in the order of the tokens.

    Each child gives two entries: its own, and its parent's at the same branch point (equal for all
    children of the point).

    Returns:
      owner: i32 [2N], the trajectory; -2 for an entry that stands for nothing.
      place: i32 [2N], the first token.
      advantage: [2N].
    """
    is_child = valid & (parent >= 0)
    brothers = is_child[:, None] & is_child[None, :]
    brothers &= parent[:, None] == parent[None, :]
    brothers &= fork_index[:, None] == fork_index[None, :]
    is_parent = is_child[:, None] & valid[None, :]
    is_parent &= parent[:, None] == jnp.arange(parent.size)[None, :]
    parent_reward = jnp.sum(jnp.where(is_parent, reward[None, :], 0.0), axis=1)

    own, num_others = _against(
        reward, reward, (brothers | is_parent) & ~jnp.eye(parent.size, dtype=bool)
    )
    of_parent, _ = _against(parent_reward, reward, brothers)
    has_others, has_parent = num_others > 0, jnp.any(is_parent, axis=1)
    number = jnp.arange(parent.size)
    owner = jnp.concatenate(
        [jnp.where(is_child & has_others, number, -2), jnp.where(has_parent, parent, -2)]
    )
    # At one place a trajectory's own children count for more than its birth: they come later.
    order = jnp.argsort(jnp.tile(fork_index, 2), stable=True)
    advantage = jnp.concatenate([own, of_parent])
    return owner[order], jnp.tile(fork_index, 2)[order], advantage[order]


def _against(
    reward: jax.Array, others: jax.Array, compared: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean over the compared j of reward_i - others_j, exactly 0 if all are equal; and how many."""
    count = jnp.sum(compared, axis=1, dtype=jnp.float32)
    differences = jnp.where(compared, reward[:, None] - others[None, :], 0.0)
    return jnp.sum(differences, axis=1) / jnp.maximum(count, 1.0), count
