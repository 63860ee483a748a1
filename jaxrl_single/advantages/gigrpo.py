"""Two levels of groups: whole trajectories of one task, and turns taken in the same state.

    A = A_episode + step_weight A_step

A_episode compares the rewards of the trajectories of a group. A_step compares the discounted
rewards to come of all turns of a group that were taken in the same state (the anchor), whichever
trajectory they belong to; a state that was met once gives 0. No critic and no further rollouts.

See "Group-in-Group Policy Optimization for LLM Agent Training" (arXiv 2505.10978). Standard
deviations are the population's.
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.advantages import baselines, skip_obs_gae
from jaxrl_single.advantages import turns as turns_lib
from jaxrl_single.ops import grouping, segments


def gigrpo(
    rewards: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    turn_ids: jax.Array,
    state_key: jax.Array,
    reward: jax.Array,
    group: jax.Array,
    valid: jax.Array,
    *,
    discount: float,
    step_weight: float,
    eps: float,
) -> jax.Array:
    """Both levels divided by the standard deviation of their group.

    Args:
      rewards: per token, on action tokens; a turn's reward is their sum.
      action_mask: bool per token. Where False, the other arrays per token may hold anything.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding; trajectories are contiguous.
      turn_ids: i32 per token, in order within a trajectory.
      state_key: i32 per token, number of the state in which its turn was taken.
      reward: [N], of the whole trajectory.
      group: i32 [N], trajectories of the same task share a number.
      valid: bool [N].
      discount: in [0, 1], per turn.
      step_weight: of A_step.
      eps: >= 0, added to the standard deviations.

    Returns:
      Per token, at least float32, stop-gradient, 0 where action_mask is False or the trajectory is
      not valid.
    """
    turns = _valid_turns(action_mask, trajectory_index, turn_ids, valid)
    to_come, labels = _steps(turns, rewards, state_key, group, discount=discount)
    step = grouping.normalised(to_come, labels, turns.exists, eps=eps)
    episode = baselines.group_normalised(reward, group, valid, eps=eps)
    return _combine(turns, episode, step, step_weight=step_weight)


def gigrpo_mean(
    rewards: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    turn_ids: jax.Array,
    state_key: jax.Array,
    reward: jax.Array,
    group: jax.Array,
    valid: jax.Array,
    *,
    discount: float,
    step_weight: float,
) -> jax.Array:
    """Both levels centred only. Arguments as for `gigrpo`."""
    turns = _valid_turns(action_mask, trajectory_index, turn_ids, valid)
    to_come, labels = _steps(turns, rewards, state_key, group, discount=discount)
    step = grouping.centred(to_come, labels, turns.exists)
    episode = baselines.group_mean(reward, group, valid)
    return _combine(turns, episode, step, step_weight=step_weight)


def _valid_turns(action_mask, trajectory_index, turn_ids, valid) -> turns_lib.Turns:
    chex.assert_equal_shape([action_mask, trajectory_index, turn_ids])
    counted = action_mask & segments.spread(valid, trajectory_index)
    return turns_lib.find(counted, trajectory_index, turn_ids)


def _steps(turns, rewards, state_key, group, *, discount) -> tuple[jax.Array, jax.Array]:
    """Per turn: discounted rewards to come, and the label of its group and state."""
    zeros = jnp.zeros(turns.exists.shape)
    stream = (turns_lib.sums(rewards, turns), zeros, turns.exists, turns.trajectory)
    no_bootstrap = jnp.zeros(group.shape)
    to_come, _ = skip_obs_gae.skip_obs_gae(*stream, no_bootstrap, discount=discount, lambda_=1.0)
    keys = (state_key.reshape(-1)[turns.first], segments.spread(group, turns.trajectory))
    labels, _ = grouping.label(keys, turns.exists)
    return to_come, labels


def _combine(turns, episode, step, *, step_weight) -> jax.Array:
    combined = segments.spread(episode, turns.trajectory) + step_weight * step
    return jax.lax.stop_gradient(turns_lib.spread(combined, turns))
