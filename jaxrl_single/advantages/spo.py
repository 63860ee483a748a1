"""SPO's baseline: a Beta distribution of the success probability of each task.

    v     = alpha / (alpha + beta), read before the update          A = R - v
    rho   = clip(2 ^ (-D / half_life), rho_min, rho_max)
    alpha <- rho alpha + R          beta <- rho beta + 1 - R

D measures how far the policy has moved since the task was last seen; the more, the faster the old
successes are forgotten. Here it is the mean |log(policy / rollout)| of the task's trajectory before
this one, taken when that one entered an update; the authors rescore that trajectory with the
present policy, for which a second forward pass over old data would be needed. D is 0 on the first
visit. The state is part of a checkpoint: alpha, beta, drift (D of the next visit), each
[num_tasks].

See "Single-stream Policy Optimization" (arXiv 2509.13232). The batch whitening of the paper is
`whitening.whiten_trajectories`.
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked, segments

State = dict[str, jax.Array]


def spo_init(num_tasks: int, *, prior: float) -> State:
    """The state without any offline rollout: alpha = beta = prior, so v = 1/2 for every task.

    Args:
      num_tasks: how many.
      prior: > 0; 0.5 is Jeffreys' prior, of the weight of one reward.
    """
    return {
        "alpha": jnp.full(num_tasks, prior),
        "beta": jnp.full(num_tasks, prior),
        "drift": jnp.zeros(num_tasks),
    }


def from_offline(successes: jax.Array, num_rollouts: jax.Array, *, rho_min: float) -> State:
    """The state after offline rollouts of the first policy; 8 per task in the paper.

    The rate (successes + 1/2) / (num_rollouts + 1) gets the weight 1 / (1 - rho_min), the number
    of rewards that the fastest forgetting remembers.

    Args:
      successes: [num_tasks].
      num_rollouts: [num_tasks].
      rho_min: in [0, 1).
    """
    rate = (masked.as_float(successes) + 0.5) / (masked.as_float(num_rollouts) + 1.0)
    weight = 1.0 / (1.0 - rho_min)
    return {"alpha": weight * rate, "beta": weight * (1.0 - rate), "drift": jnp.zeros_like(rate)}


def spo(
    state: State,
    reward: jax.Array,
    task: jax.Array,
    valid: jax.Array,
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    *,
    half_life: float,
    rho_min: float,
    rho_max: float,
) -> tuple[jax.Array, State]:
    """A_i = R_i - v of its task; trajectories are taken in the order of the batch.

    Args:
      state: from `spo_init`, `from_offline` or the batch before.
      reward: [N], in [0, 1]; outside, alpha or beta may become negative.
      task: i32 [N] in 0..num_tasks-1, the same number for a task in every batch.
      valid: bool [N]; where False, reward and task may hold anything, and the state stays.
      log_ratio: per token, log(policy / rollout) before the update, nats.
      action_mask: bool per token.
      trajectory_index: i32 per token, -1 on padding.
      half_life: > 0, nats per token: the drift that halves the memory.
      rho_min, rho_max: bounds of rho, 0 <= rho_min <= rho_max <= 1.

    Returns:
      advantages: [N], stop-gradient, 0 where not valid.
      state: after the batch.
    """
    chex.assert_rank([reward, task, valid], 1)
    drift = _mean_drift(log_ratio, action_mask, trajectory_index, valid)

    def step(state, inputs):
        reward, task, valid, drift = inputs
        alpha, beta, old_drift = (state[name][task] for name in ("alpha", "beta", "drift"))
        rho = jnp.clip(jnp.exp2(-old_drift / half_life), rho_min, rho_max)
        after = {"alpha": rho * alpha + reward, "beta": rho * beta + 1.0 - reward, "drift": drift}
        advantage = jnp.where(valid, reward - alpha / (alpha + beta), 0.0)
        return {name: _replace(state[name], task, after[name], valid) for name in after}, advantage

    inputs = (masked.clean(reward, valid), jnp.where(valid, task, 0), valid, drift)
    state, advantages = jax.lax.scan(step, state, inputs)
    return jax.lax.stop_gradient((advantages, state))


def task_weights(state: State, *, floor: float) -> jax.Array:
    """sqrt(v (1 - v)) + floor: how often to sample each task, not normalised; [num_tasks].

    A task of which the policy knows the outcome teaches little; `floor` keeps it in the play.
    """
    value = state["alpha"] / (state["alpha"] + state["beta"])
    return jnp.sqrt(value * (1.0 - value)) + floor


def _mean_drift(log_ratio, action_mask, trajectory_index, valid) -> jax.Array:
    """Mean |log_ratio| of each trajectory's action tokens, [N]; 0 without any."""
    stream = (action_mask, trajectory_index, valid.shape[0])
    total = segments.trajectory_sums(jnp.abs(log_ratio), *stream)
    return masked.clean(total / jnp.maximum(segments.lengths(*stream), 1.0), valid)


def _replace(array, at, entry, valid) -> jax.Array:
    """`array` with its entry `at` replaced where `valid`."""
    return array.at[at].set(jnp.where(valid, entry.astype(array.dtype), array[at]))
