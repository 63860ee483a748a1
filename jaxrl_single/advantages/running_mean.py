"""Baseline: the mean of the last rewards, per task or over all tasks.

Trajectories are taken one after the other, in the order of the batch, and each reads the window
before its own reward enters: a reward in its own baseline would bias the gradient. So a batch gives
the same advantages as its trajectories one by one. The state is part of a checkpoint:

    rewards: [num_tasks, window], a ring per task
    seen: i32 [num_tasks], rewards that ever entered

See "SAO" (arXiv 2607.07508): per task 8 (§4.3), over all tasks 128 (§4.5).
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked

State = dict[str, jax.Array]


def running_mean_init(num_tasks: int, *, window: int) -> State:
    """Empty windows of `window` rewards for each of `num_tasks` tasks."""
    return {
        "rewards": jnp.zeros((num_tasks, window)),
        "seen": jnp.zeros(num_tasks, jnp.int32),
    }


def running_mean(
    state: State, reward: jax.Array, task: jax.Array, valid: jax.Array, *, initial: float
) -> tuple[jax.Array, State]:
    """A_i = R_i - mean of the last rewards of its task.

    Args:
      state: from `running_mean_init` or the batch before.
      reward: [N].
      task: i32 [N] in 0..num_tasks-1, the same number for a task in every batch.
      valid: bool [N]; where False, reward and task may hold anything, and the state stays.
      initial: the baseline of an empty window.

    Returns:
      advantages: [N], stop-gradient, 0 where not valid.
      state: after the batch.
    """
    chex.assert_rank([reward, task, valid], 1)
    window = state["rewards"].shape[1]

    def step(state, inputs):
        reward, task, valid = inputs
        rewards, seen = state["rewards"][task], state["seen"][task]
        filled = jnp.arange(window) < seen
        baseline = jnp.where(seen > 0, masked.mean(rewards, filled), initial)
        slot = seen % window
        entry = jnp.where(valid, reward.astype(rewards.dtype), rewards[slot])
        state = {
            "rewards": state["rewards"].at[task, slot].set(entry),
            "seen": state["seen"].at[task].add(valid.astype(seen.dtype)),
        }
        return state, jnp.where(valid, reward - baseline, 0.0)

    inputs = (masked.clean(reward, valid), jnp.where(valid, task, 0), valid)
    state, advantages = jax.lax.scan(step, state, inputs)
    return jax.lax.stop_gradient((advantages, state))


def global_running_mean_init(num_tasks: int, *, window: int) -> State:
    """One empty window for all tasks, however many they are."""
    del num_tasks
    return running_mean_init(1, window=window)


def global_running_mean(
    state: State, reward: jax.Array, valid: jax.Array, *, initial: float
) -> tuple[jax.Array, State]:
    """A_i = R_i - mean of the last rewards of any task. Arguments as for `running_mean`."""
    task = jnp.zeros(reward.shape, jnp.int32)
    return running_mean(state, reward, task, valid, initial=initial)
