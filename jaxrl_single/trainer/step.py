"""The train step: critic updates -> values -> advantages -> policy updates, one jitted function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_single.algorithms import arrays as arrays_lib
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.algorithms import update as update_lib
from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.ops import masked
from jaxrl_single.trainer import accumulate, critic_step, forward, kl_step, optim, policy_step
from jaxrl_single.trainer import state as state_lib

Step = Callable[
    [state_lib.TrainState, token_batch.TokenBatch, jax.Array],
    tuple[state_lib.TrainState, dict[str, jax.Array], dict[str, jax.Array]],
]


def make_train_step(
    policy: api.Policy,
    critic: api.Critic | None,
    algorithm: row_lib.Algorithm,
    *,
    policy_optimizer: optim.Optimizer,
    critic_optimizer: optim.Optimizer | None,
    critic_first: bool,
    chunk: int,
    kl: kl_step.Budget | None = None,
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
      kl: shortens policy updates to a budget of KL divergence; None = no limit.
      state_shardings: a TrainState of shardings (see mesh.py), None on one device.

    Returns:
      (state, batch, critic_only) -> (state, metrics, evidence). `critic_only` is a bool scalar,
      traced: both kinds of step are one program, and the policy's work is skipped at run time.
      Metrics are float32 scalars by the names of metrics/names.py, NaN where there was nothing to
      measure. Evidence is what the step made of each token, [M, B, T] by name: "advantages";
      "values", those that the advantages came from, with "bootstrap_values" [N]; those of
      `policy_step.policy_updates`, NaN in a critic-only step; "proximal_logprobs" and
      "ref_logprobs" where the row reads them. The step computes all of it in any case, and it
      stays on the devices until somebody fetches it.

    Raises:
      ValueError: the algorithm needs a critic and there is none.
    """
    if algorithm.needs_critic and (critic is None or critic_optimizer is None):
        raise ValueError(f"algorithm {algorithm.name!r} needs a critic and its optimiser")

    policy_updates = functools.partial(
        policy_step.policy_updates, policy, algorithm, policy_optimizer, chunk=chunk, kl=kl
    )

    def step(state, batch, critic_only):
        batch = _with_fixed_logprobs(policy, algorithm, state, batch, chunk=chunk)
        (found, values), critic_params, critic_opt, critic_metrics, critic_finite = _critic_phase(
            critic, algorithm, critic_optimizer, state, batch, critic_first=critic_first
        )
        before = policy_step.PolicyState(state.policy_params, state.policy_opt, found.state)
        after, policy_metrics, evidence, policy_finite = _policy_phase(
            policy_updates, before, batch, found.advantages, critic_only
        )
        finite = critic_finite & policy_finite
        new = state_lib.TrainState(
            policy_params=after.params,
            policy_opt=after.opt_state,
            critic_params=critic_params,
            critic_opt=critic_opt,
            reference_params=state.reference_params,
            algorithm_state=after.algorithm_state,
            step=state.step + 1,
            key=state.key,
        )
        metrics = critic_metrics | policy_metrics
        metrics |= accumulate.guards(accumulate.loss_tokens(batch), finite)
        metrics["train/critic_only"] = jnp.float32(critic_only)
        evidence |= {"advantages": found.advantages} | values | _fixed_logprobs(batch)
        return state_lib.select(finite, new, state), metrics, evidence

    return jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, None, None))


def _critic_phase(critic, algorithm, optimizer, state, batch, *, critic_first: bool):
    """Critic updates and advantages.

    Returns:
      An AdvantageOutput and the values that it is of, by name; params, opt_state, metrics, finite.
    """
    if not algorithm.needs_critic:
        output = _advantages(algorithm, state, batch)
        return (output, {}), state.critic_params, state.critic_opt, {}, jnp.bool_(True)
    before = used = critic_step.values(critic, state.critic_params, batch)
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
        used = critic_step.values(critic, params, batch)
        output = _advantages(algorithm, state, batch, *used)
    metrics = critic_step.metrics(before[0], targets, found, opt_state, batch)
    values = dict(zip(("values", "bootstrap_values"), used, strict=True))
    return (output, values), params, opt_state, metrics, jnp.all(found.finite)


def _policy_phase(updates, before, batch, advantages, critic_only):
    """The policy's updates, or none of their work in a critic-only step."""
    updates = jax.jit(updates)  # so that it is traced once, for its shapes and for its program

    def skip(before, batch, advantages):
        shapes = jax.eval_shape(updates, before, batch, advantages)[1:3]
        nothing = jax.tree.map(lambda of: jnp.full(of.shape, jnp.nan, of.dtype), shapes)
        return before, *nothing, jnp.bool_(True)

    return jax.lax.cond(critic_only, skip, updates, before, batch, advantages)


def _with_fixed_logprobs(policy, algorithm, state, batch, *, chunk: int):
    """Adds the log-probs of policies that this batch does not move, where the row reads them."""

    def logprobs_of(params, batch):
        def of_micro(micro):
            return forward.policy_forward(policy, params, micro, chunk=chunk).logprobs

        return accumulate.forward(of_micro, batch)

    before_update = {"proximal_logprobs", "engine_log_ratio"}
    if before_update & algorithm.reads or "log_ratio" in algorithm.advantage.reads:
        found = logprobs_of(state.policy_params, batch)
        batch = dataclasses.replace(batch, proximal_logprobs=found)
    if "ref_logprobs" in algorithm.reads:
        # The reference is a fixed model: what it says must not depend on another one's routing.
        own_routing = dataclasses.replace(batch, expert_ids=None)
        found = logprobs_of(state.reference_params, own_routing)
        batch = dataclasses.replace(batch, ref_logprobs=found)
    return batch


def _fixed_logprobs(batch):
    named = {
        "proximal_logprobs": batch.proximal_logprobs,
        "ref_logprobs": batch.ref_logprobs,
    }
    return {name: array for name, array in named.items() if array is not None}


def _advantages(algorithm, state, batch, values=None, bootstrap_values=None):
    log_ratio = None
    if batch.proximal_logprobs is not None:
        log_ratio = masked.safe_log_ratio(
            batch.proximal_logprobs, batch.rollout_logprobs, batch.action_mask
        )
    arrays = arrays_lib.AdvantageArrays(
        rewards=batch.rewards,
        action_mask=batch.action_mask,
        trajectory_index=batch.trajectory_index,
        reward=batch.reward,
        group=batch.group,
        valid=batch.valid,
        task=batch.task,
        turn_ids=batch.turn_ids,
        log_ratio=log_ratio,
        values=values,
        bootstrap_values=bootstrap_values,
    )
    return update_lib.advantages(algorithm, arrays, state.algorithm_state)
