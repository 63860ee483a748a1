"""The train step: critic updates -> values -> advantages -> policy updates, one jitted function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_single.algorithms import table
from jaxrl_single.algorithms import update as update_lib
from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.trainer import accumulate, critic_step, optim, policy_step
from jaxrl_single.trainer import state as state_lib

Step = Callable[
    [state_lib.TrainState, token_batch.TokenBatch, jax.Array],
    tuple[state_lib.TrainState, dict[str, jax.Array]],
]


def make_train_step(
    policy: api.Policy,
    critic: api.Critic | None,
    algorithm: table.Algorithm,
    *,
    policy_optimizer: optim.Optimizer,
    critic_optimizer: optim.Optimizer | None,
    critic_first: bool,
    chunk: int,
    state_shardings: Any = None,
) -> Step:
    """Builds the jitted step; it donates the state.

    A batch without loss tokens changes neither parameters nor optimisers. A loss or gradient that
    is not finite leaves the whole state as it was, the step count included, so that the caller
    can save it; `train/nonfinite` says so.

    Args:
      policy: the model to train.
      critic: needed by rows with `needs_critic`, else None.
      algorithm: the row, with its hyper-parameters.
      policy_optimizer, critic_optimizer: over their parameters; None without a critic.
      critic_first: advantages come from the critic after its updates on this batch; else before.
      chunk: tokens per row whose logits exist at one time.
      state_shardings: a TrainState of shardings (see mesh.py), None on one device.

    Returns:
      (state, batch, critic_only) -> (state, metrics). `critic_only` is a bool scalar, traced: both
      kinds of step are one program, and the policy's work is skipped at run time. Metrics are
      float32 scalars by the names of metrics/names.py, NaN where there was nothing to measure.

    Raises:
      ValueError: the algorithm needs a critic and there is none.
    """
    if algorithm.needs_critic and (critic is None or critic_optimizer is None):
        raise ValueError(f"algorithm {algorithm.name!r} needs a critic and its optimiser")

    # Jitted, so that the branch below is traced once for its shapes and its program.
    updates = jax.jit(
        functools.partial(
            policy_step.policy_updates, policy, algorithm, policy_optimizer, chunk=chunk
        )
    )

    def step(state, batch, critic_only):
        advantages, critic_params, critic_opt, critic_metrics, critic_finite = _critic_phase(
            critic, algorithm, critic_optimizer, state, batch, critic_first=critic_first
        )
        before = policy_step.PolicyState(
            state.policy_params, state.policy_opt, state.algorithm_state
        )

        def skip(before, batch, advantages):
            shapes = jax.eval_shape(updates, before, batch, advantages)[1]
            nothing = {name: jnp.full((), jnp.nan, of.dtype) for name, of in shapes.items()}
            return before, nothing, jnp.bool_(True)

        after, policy_metrics, policy_finite = jax.lax.cond(
            critic_only, skip, updates, before, batch, advantages
        )
        finite = critic_finite & policy_finite
        new = state_lib.TrainState(
            policy_params=after.params,
            policy_opt=after.opt_state,
            critic_params=critic_params,
            critic_opt=critic_opt,
            algorithm_state=after.algorithm_state,
            step=state.step + 1,
            key=state.key,
        )
        metrics = critic_metrics | policy_metrics
        metrics |= accumulate.guards(accumulate.loss_tokens(batch), finite)
        metrics["train/critic_only"] = jnp.float32(critic_only)
        return state_lib.select(finite, new, state), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, None))


def _critic_phase(critic, algorithm, optimizer, state, batch, *, critic_first: bool):
    """Critic updates and advantages: (advantages, params, opt_state, metrics, finite)."""
    if not algorithm.needs_critic:
        output = _advantages(algorithm, state, batch)
        return output.advantages, state.critic_params, state.critic_opt, {}, jnp.bool_(True)
    before = critic_step.values(critic, state.critic_params, batch)
    output = _advantages(algorithm, state, batch, *before)
    lengths, denominator = update_lib.reduction_inputs(
        algorithm, batch.loss_mask, batch.trajectory_index, batch.num_trajectories
    )
    targets = critic_step.Targets(output.returns, lengths, denominator, algorithm.reduction)
    params, opt_state, found = critic_step.critic_updates(
        critic,
        optimizer,
        state.critic_params,
        state.critic_opt,
        batch,
        targets,
        num_steps=algorithm.num_critic_steps,
    )
    if critic_first:
        output = _advantages(algorithm, state, batch, *critic_step.values(critic, params, batch))
    metrics = critic_step.metrics(before[0], targets, found, opt_state, batch)
    return output.advantages, params, opt_state, metrics, jnp.all(found.finite)


def _advantages(algorithm, state, batch, values=None, bootstrap_values=None):
    arrays = update_lib.AdvantageArrays(
        rewards=batch.rewards,
        action_mask=batch.action_mask,
        trajectory_index=batch.trajectory_index,
        reward=batch.reward,
        group=batch.group,
        valid=batch.valid,
        values=values,
        bootstrap_values=bootstrap_values,
    )
    return update_lib.advantages(algorithm, arrays, state.algorithm_state)
