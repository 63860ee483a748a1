"""The policy's updates on one batch, with the objective of an algorithm's row."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_single.algorithms import arrays as arrays_lib
from jaxrl_single.algorithms import diagnostics
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.algorithms import update as update_lib
from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.trainer import accumulate, forward, kl_step, optim


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyState:
    """The part of the train state that a policy update changes."""

    params: optim.Params
    opt_state: optim.OptState
    algorithm_state: Any


def policy_updates(
    policy: api.Policy,
    algorithm: row_lib.Algorithm,
    optimizer: optim.Optimizer,
    state: PolicyState,
    batch: token_batch.TokenBatch,
    advantages: jax.Array,
    *,
    chunk: int,
    kl: kl_step.Budget | None = None,
) -> tuple[PolicyState, dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    """`num_policy_epochs` passes over the batch, each of `num_minibatches` updates.

    Log-probs are computed afresh for each update. Denominators count the tokens and
    trajectories of the minibatch that the update reads.

    Args:
      advantages: [M, B, T].
      chunk: tokens per row whose logits exist at one time.
      kl: shortens each update to a budget of KL divergence; None = no limit.

    Returns:
      state: after the updates.
      metrics: means over all updates by name; log-ratio quantiles are those of the first pass.
      evidence: [M, B, T] by name, of the first pass, each token as its update saw it:
        "policy_logprobs" and "policy_entropies"; "weights", what multiplied advantage x
        grad log pi; "coefficients", minus the gradient of the loss by the token's log-prob.
      finite: bool, every update was sound.

    Raises:
      ValueError: the micro-batches cannot be dealt out evenly to the minibatches.
    """
    minibatches = _deal(batch, advantages, algorithm.num_minibatches)

    def one_update(state, minibatch):
        tokens, of_tokens = minibatch
        part = dataclasses.replace(batch, **tokens)
        new, found = _one_update(policy, algorithm, optimizer, state, part, of_tokens, chunk=chunk)
        if kl is None:
            return new, (found, {})
        before, proposed = ((one.params, one.opt_state) for one in (state, new))
        (params, opt_state), of_step = kl_step.shorten(
            policy, optimizer, before, proposed, part, budget=kl, chunk=chunk
        )
        return dataclasses.replace(new, params=params, opt_state=opt_state), (found, of_step)

    def one_epoch(state, _):
        return jax.lax.scan(one_update, state, minibatches)

    state, (found, of_steps) = jax.lax.scan(one_epoch, state, length=algorithm.num_policy_epochs)
    evidence = {
        name: array[0].reshape(batch.tokens.shape) for name, array in found.aux.outputs.items()
    }
    sums = jax.tree.map(jnp.sum, found.aux.sums)
    metrics = diagnostics.means(sums)
    metrics |= diagnostics.log_ratio_quantiles(
        evidence["policy_logprobs"], batch.rollout_logprobs, batch.loss_mask
    )
    metrics |= {
        "policy/loss": found.loss.mean(),
        "policy/gradient_norm": found.norm.mean(),
        "policy/learning_rate": optim.last_learning_rate(state.opt_state),
    }
    metrics |= jax.tree.map(jnp.mean, of_steps)
    return state, metrics, evidence, jnp.all(found.finite)


def _one_update(policy, algorithm, optimizer, state, batch, advantages, *, chunk):
    """One update from one minibatch; also what it found, without the gradients themselves."""
    lengths, denominator = update_lib.reduction_inputs(
        algorithm, batch.loss_mask, batch.trajectory_index, batch.num_trajectories
    )

    def outputs_of(params, micro):
        outputs = forward.policy_forward(policy, params, micro, chunk=chunk)
        named = {
            "policy_logprobs": outputs.logprobs,
            "policy_entropies": outputs.entropies,
            "aux_policy_logprobs": outputs.aux_logprobs,
            "topk_policy_logprobs": outputs.topk_logprobs,
            "full_policy_logprobs": outputs.full_logprobs,
        }
        used = {name: array for name, array in named.items() if array is not None}
        return used, _routing(micro, outputs.rerouted)

    whole = (state, batch, (advantages, lengths), denominator)
    # Where tokens of several micro-batches meet in one loss, it is differentiated in two steps.
    split = algorithm.couples and batch.tokens.shape[0] > 1
    find = _coupled_gradients if split else _gradients
    found = find(algorithm, optimizer, outputs_of, *whole)
    params, opt_state = accumulate.update(
        state.params,
        state.opt_state,
        optimizer,
        found,
        num_tokens=accumulate.loss_tokens(batch),
    )
    return PolicyState(params, opt_state, found.aux.carry), dataclasses.replace(found, trained={})


def _gradients(algorithm, optimizer, outputs_of, state, batch, of_tokens, denominator):
    """Each micro-batch makes its share of the loss."""

    def share(params, micro, of_micro, carry):
        *of_micro, shift = of_micro
        outputs, routing = outputs_of(params, micro)
        # The slope by what is added to a log-prob, here 0, is the slope by the log-prob.
        outputs = outputs | {"policy_logprobs": outputs["policy_logprobs"] + shift}
        inputs = _policy_arrays(micro, outputs, *of_micro, denominator)
        loss, aux = update_lib.policy_loss(algorithm, inputs, carry)
        return loss, accumulate.Aux(aux.metrics | routing, _of_policy(outputs, aux), aux.state)

    found = accumulate.gradients(
        share,
        state.params,
        optimizer,
        batch,
        arrays=of_tokens,
        carry=state.algorithm_state,
        probes=(jnp.zeros(batch.tokens.shape, jnp.float32),),
    )
    return _with_coefficients(found, found.aux, -found.probed[0])


def _coupled_gradients(algorithm, optimizer, outputs_of, state, batch, of_tokens, denominator):
    """The loss of all micro-batches together, by the chain rule through the model's outputs.

    First the coefficient of every output, from a forward pass over all micro-batches; then the
    gradient of minus (coefficient x output), micro-batch by micro-batch. One forward pass more than
    `_gradients`, and the same memory.
    """
    outputs, routing = accumulate.forward(lambda micro: outputs_of(state.params, micro), batch)
    coefficients, loss, aux = update_lib.score_coefficients(
        algorithm, _policy_arrays(batch, outputs, *of_tokens, denominator), state.algorithm_state
    )

    def share(params, micro, coefficients, carry):
        outputs, _ = outputs_of(params, micro)
        products = [
            jnp.sum(coefficient * outputs[name]) for name, coefficient in coefficients.items()
        ]
        return -sum(products), accumulate.Aux({}, (), carry)

    found = accumulate.gradients(share, state.params, optimizer, batch, arrays=coefficients)
    metrics = aux.metrics | jax.tree.map(jnp.sum, routing)
    whole = accumulate.Aux(metrics, _of_policy(outputs, aux), aux.state)
    nothing = jnp.zeros(batch.tokens.shape, jnp.float32)
    found = dataclasses.replace(found, loss=loss)
    return _with_coefficients(found, whole, coefficients.get("policy_logprobs", nothing))


def _of_policy(outputs, aux):
    """What is told of each token, without gradient."""
    told = {name: outputs[name] for name in ("policy_logprobs", "policy_entropies")}
    return jax.lax.stop_gradient(told | {"weights": aux.weights})


def _with_coefficients(found, aux, coefficients):
    outputs = aux.outputs | {"coefficients": coefficients}
    return dataclasses.replace(found, aux=dataclasses.replace(aux, outputs=outputs), probed=())


def _routing(micro, rerouted):
    """How often the routers would choose other experts than are replayed, as (sum, weight)."""
    if rerouted is None:
        return {}
    known = (micro.expert_ids >= 0).all(axis=-1) & (micro.segment_ids > 0)[..., None]
    pairs = {
        "routing/changed": (rerouted, known),
        "routing/changed_tokens": (rerouted.any(axis=-1), known.any(axis=-1)),
    }
    return jax.tree.map(lambda flags: jnp.sum(flags, dtype=jnp.float32), pairs)


def _policy_arrays(batch, outputs, advantages, lengths, denominator):
    return arrays_lib.PolicyArrays(
        **outputs,
        rollout_logprobs=batch.rollout_logprobs,
        entropies=batch.entropies,
        advantages=advantages,
        loss_mask=batch.loss_mask,
        trajectory_index=batch.trajectory_index,
        trajectory_lengths=lengths,
        denominator=denominator,
        reward=batch.reward,
        group=batch.group,
        valid=batch.valid,
        turn_ids=batch.turn_ids,
        proximal_logprobs=batch.proximal_logprobs,
        ref_logprobs=batch.ref_logprobs,
        aux_rollout_logprobs=batch.aux_logprobs,
        topk_rollout_logprobs=batch.topk_logprobs,
        full_rollout_logprobs=batch.full_logprobs,
    )


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
