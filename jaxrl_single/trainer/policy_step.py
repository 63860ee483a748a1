"""The policy's updates on one batch, with the objective of an algorithm's row."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_single.algorithms import diagnostics, table
from jaxrl_single.algorithms import update as update_lib
from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.trainer import accumulate, forward, optim


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyState:
    """The part of the train state that a policy update changes."""

    params: optim.Params
    opt_state: optax.OptState
    algorithm_state: Any


def policy_updates(
    policy: api.Policy,
    algorithm: table.Algorithm,
    optimizer: optim.Optimizer,
    state: PolicyState,
    batch: token_batch.TokenBatch,
    advantages: jax.Array,
    *,
    chunk: int,
) -> tuple[PolicyState, dict[str, jax.Array], jax.Array]:
    """`num_policy_epochs` passes over the batch, each of `num_minibatches` updates.

    Log-probs are computed afresh for each update. Denominators count the tokens and
    trajectories of the minibatch that the update reads.

    Args:
      advantages: [M, B, T].
      chunk: tokens per row whose logits exist at one time.

    Returns:
      state: after the updates.
      metrics: means over all updates by name; log-ratio quantiles are those of the first pass.
      finite: bool, every update was sound.

    Raises:
      ValueError: the micro-batches cannot be dealt out evenly to the minibatches.
    """
    if algorithm.ratio_reference == "proximal":
        proximal, _ = accumulate.forward(
            lambda micro: forward.policy_forward(policy, state.params, micro, chunk=chunk), batch
        )
        batch = dataclasses.replace(batch, proximal_logprobs=proximal)
    minibatches = _deal(batch, advantages, algorithm.num_minibatches)

    def one_update(state, minibatch):
        tokens, of_tokens = minibatch
        part = dataclasses.replace(batch, **tokens)
        return _one_update(policy, algorithm, optimizer, state, part, of_tokens, chunk=chunk)

    def one_epoch(state, _):
        return jax.lax.scan(one_update, state, minibatches)

    state, found = jax.lax.scan(one_epoch, state, length=algorithm.num_policy_epochs)
    logprobs = found.aux.outputs[0].reshape(batch.tokens.shape)
    sums = jax.tree.map(jnp.sum, found.aux.sums)
    metrics = diagnostics.means(sums)
    metrics |= diagnostics.log_ratio_quantiles(logprobs, batch.rollout_logprobs, batch.loss_mask)
    metrics |= {
        "policy/loss": found.loss.mean(),
        "policy/gradient_norm": found.norm.mean(),
        "policy/learning_rate": optim.last_learning_rate(state.opt_state),
    }
    return state, metrics, jnp.all(found.finite)


def _one_update(policy, algorithm, optimizer, state, batch, advantages, *, chunk):
    """One update from one minibatch; also what it found, without the gradients themselves."""
    lengths, denominator = update_lib.reduction_inputs(
        algorithm, batch.loss_mask, batch.trajectory_index, batch.num_trajectories
    )

    def share(params, micro, arrays, carry):
        micro_advantages, micro_lengths = arrays
        logprobs, entropies = forward.policy_forward(policy, params, micro, chunk=chunk)
        inputs = update_lib.PolicyArrays(
            policy_logprobs=logprobs,
            policy_entropies=entropies,
            rollout_logprobs=micro.rollout_logprobs,
            entropies=micro.entropies,
            advantages=micro_advantages,
            loss_mask=micro.loss_mask,
            trajectory_lengths=micro_lengths,
            denominator=denominator,
            proximal_logprobs=micro.proximal_logprobs,
        )
        loss, (sums, carry) = update_lib.policy_loss(algorithm, inputs, carry)
        return loss, accumulate.Aux(sums, jax.lax.stop_gradient(logprobs), carry)

    found = accumulate.gradients(
        share,
        state.params,
        optimizer,
        batch,
        arrays=(advantages, lengths),
        carry=state.algorithm_state,
    )
    params, opt_state = accumulate.update(
        state.params,
        state.opt_state,
        optimizer,
        found,
        num_tokens=accumulate.loss_tokens(batch),
    )
    return PolicyState(params, opt_state, found.aux.carry), dataclasses.replace(found, trained={})


def _deal(batch, advantages, num_minibatches: int):
    """Per-token arrays [M, ...] -> [minibatches, M / minibatches, ...]."""
    num_micro = batch.tokens.shape[0]
    if num_micro % num_minibatches:
        raise ValueError(
            f"a batch of {num_micro} micro-batches cannot be split into num_minibatches="
            f"{num_minibatches}; lower batch.rows_per_micro_batch or change num_minibatches"
        )
    shape = (num_minibatches, num_micro // num_minibatches)
    arrays = (token_batch.token_fields(batch), advantages)
    return jax.tree.map(lambda array: array.reshape(shape + array.shape[1:]), arrays)
