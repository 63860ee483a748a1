"""Composes a row of the table into advantages and a policy loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_single.algorithms import arrays as arrays_lib
from jaxrl_single.algorithms import diagnostics, parts
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.ops import masked, reduce, segments

State = dict[str, Any]  # of stateful parts by the name of their field; a checkpointed pytree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdvantageOutput:
    """Per token, 0 off the action mask; `returns` are the critic's targets (0 without a critic)."""

    advantages: jax.Array
    returns: jax.Array
    state: State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyAux:
    """What comes with a policy loss; all of it stop-gradient.

    Attributes:
      metrics: (sum, weight) pairs, see `diagnostics.means`.
      weights: per token, what multiplied advantage x grad log pi: ratio x keep as applied.
      state: of stateful parts, after this.
    """

    metrics: diagnostics.Metrics
    weights: jax.Array
    state: State


def init_state(algorithm: row_lib.Algorithm, *, num_tasks: int) -> State:
    """The state of stateful parts before the first update, part of the train state.

    Args:
      algorithm: the row.
      num_tasks: how many numbers `task` (or `state_key`) may take.
    """
    stateful = {"advantage": algorithm.advantage, "keep_rule": algorithm.keep_rule}
    state = {name: part.first_state(num_tasks) for name, part in stateful.items() if part.init}
    # Without weak types: if an update does not return them, the second step is compiled again.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)


def task_weights(algorithm: row_lib.Algorithm, state: State) -> jax.Array | None:
    """Relative frequencies of the tasks by their number, [num_tasks]; None without a preference."""
    if algorithm.advantage.task_weights is None:
        return None
    return algorithm.advantage.weigh_tasks(state["advantage"])


def reduction_inputs(
    algorithm: row_lib.Algorithm,
    loss_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
) -> tuple[jax.Array, jax.Array]:
    """What the reduction needs to know about the WHOLE batch, before it is split.

    Args:
      algorithm: the row.
      loss_mask: bool per token.
      trajectory_index: i32 per token.
      num_trajectories: N, static.

    Returns:
      trajectory_lengths: f32 per token, tokens of the loss mask in the token's trajectory.
      denominator: f32 scalar; counts tokens of the loss mask, or trajectories with at least one.
    """
    lengths = segments.lengths(loss_mask, trajectory_index, num_trajectories)
    denominator = reduce.denominator(
        algorithm.reduction,
        num_tokens=jnp.sum(lengths),
        num_trajectories=jnp.sum(lengths > 0),
        fixed_length=algorithm.fixed_length,
    )
    return segments.spread(lengths, trajectory_index), denominator


def advantages(
    algorithm: row_lib.Algorithm, arrays: arrays_lib.AdvantageArrays, state: State
) -> AdvantageOutput:
    """Advantages and critic targets of the whole batch. All outputs are stop-gradient.

    Raises:
      ValueError: the row reads an array that is None.
    """
    shape, mask = arrays.action_mask.shape, arrays.action_mask.reshape(-1)
    available = {
        name: array if name in arrays_lib.PER_TRAJECTORY else array.reshape(-1)
        for name, array in arrays_lib.held(arrays).items()
    }
    available["num_trajectories"] = arrays.valid.shape[0]
    part = algorithm.advantage
    result, state = _call(algorithm, "advantage", available, state)
    values, returns = result if "values" in part.reads else (result, jnp.zeros(mask.shape))
    whitening = algorithm.whitening
    for level in (parts.TRAJECTORY, parts.TOKEN):
        if level == parts.TOKEN and part.per == parts.TRAJECTORY:
            values = masked.clean(segments.spread(values, available["trajectory_index"]), mask)
        if whitening is not None and whitening.per == level:
            values, state = _call(
                algorithm, "whitening", {**available, "advantages": values}, state
            )
    return AdvantageOutput(values.reshape(shape), returns.reshape(shape), state)


def policy_loss(
    algorithm: row_lib.Algorithm, arrays: arrays_lib.PolicyArrays, state: State
) -> tuple[jax.Array, PolicyAux]:
    """The share of one micro-batch in the loss of the update; shares and metrics are to be summed.

    A row with `couples` needs all tokens of the update at once.

    Returns:
      loss: scalar, differentiable in the arrays named by `arrays.DIFFERENTIABLE`.
      aux: metrics, weights and state.

    Raises:
      ValueError: the row reads an array that is None.
    """
    mask = arrays.loss_mask
    available = arrays_lib.held(arrays) | _derived(arrays)
    kept, state = _call(algorithm, "keep_rule", available, state)
    correction = 1.0
    if algorithm.correction is not None:
        correction = _call(algorithm, "correction", available, state)[0]
    available["keep"] = jax.lax.stop_gradient(kept * correction)
    under_ratio = {"rollout_logprobs": _denominators_of_ratio(algorithm, available)}
    result, state = _call(algorithm, "objective", available | under_ratio, state)
    per_token, weights, metrics = result
    loss = reduce.REDUCTIONS[algorithm.reduction](
        per_token,
        mask,
        trajectory_lengths=arrays.trajectory_lengths,
        denominator=arrays.denominator,
    )
    for name, term in algorithm.terms.items():
        value, term_metrics = _term(algorithm, name, term, available)
        loss, metrics = loss + value, metrics | term_metrics
    metrics |= _diagnostics(available | {"keep": kept}, weights, mask)
    return loss, jax.lax.stop_gradient(PolicyAux(metrics, weights, state))


def score_coefficients(
    algorithm: row_lib.Algorithm, arrays: arrays_lib.PolicyArrays, state: State
) -> tuple[dict[str, jax.Array], jax.Array, PolicyAux]:
    """Minus the gradient of the loss with respect to each model output that the row reads.

    That of "policy_logprobs" is how strongly the update pushes each token up (> 0) or down (< 0).
    These coefficients are all that distinguishes one algorithm from another.

    Returns:
      coefficients: by the names `arrays.DIFFERENTIABLE`, each of the shape of its array.
      loss, aux: as from `policy_loss`.
    """
    # A coefficient that is 0 everywhere would still cost the trainer a backward pass.
    outputs = {
        name: array
        for name, array in arrays_lib.held(arrays).items()
        if name in arrays_lib.DIFFERENTIABLE and name in algorithm.reads
    }

    def loss(outputs):
        return policy_loss(algorithm, dataclasses.replace(arrays, **outputs), state)

    (value, aux), slopes = jax.value_and_grad(loss, has_aux=True)(outputs)
    return jax.tree.map(jnp.negative, slopes), value, aux


def _derived(arrays: arrays_lib.PolicyArrays) -> dict[str, Any]:
    """What follows from the arrays: names that parts may read besides the fields."""
    mask, rollout = arrays.loss_mask, arrays.rollout_logprobs
    log_ratio = masked.safe_log_ratio(arrays.policy_logprobs, rollout, mask)
    engine = log_ratio
    if arrays.proximal_logprobs is not None:
        engine = masked.safe_log_ratio(arrays.proximal_logprobs, rollout, mask)
    return {
        "action_mask": mask,
        "log_ratio": jax.lax.stop_gradient(log_ratio),
        "engine_log_ratio": jax.lax.stop_gradient(engine),
        "num_trajectories": arrays.valid.shape[0],
    }


def _denominators_of_ratio(algorithm: row_lib.Algorithm, available: dict[str, Any]) -> jax.Array:
    if algorithm.ratio_reference == "rollout":
        return available["rollout_logprobs"]
    if "proximal_logprobs" not in available:
        raise ValueError(
            f"algorithm {algorithm.name!r}: ratio_reference is 'proximal', and this batch holds no "
            "proximal_logprobs"
        )
    return available["proximal_logprobs"]


def _term(algorithm, name: str, term: parts.Part, available: dict[str, Any]):
    """coefficient x mean over the term's own tokens, and its metric without the coefficient."""
    arrays = _arrays_of(algorithm, f"terms.{name}", term, available)
    per_token, mask = term.chosen(*arrays)
    value = masked.mean(per_token, mask)
    metric = {f"policy/{name}": (masked.total(per_token, mask), masked.count(mask))}
    return term.hyperparameters["coefficient"] * value, metric


def _diagnostics(available, weights, mask) -> diagnostics.Metrics:
    keep, log_ratio, entropies = (available[k] for k in ("keep", "log_ratio", "entropies"))
    advantages_, policy_entropies = available["advantages"], available["policy_entropies"]
    return (
        {"policy/weight_mean": (masked.total(weights, mask), masked.count(mask))}
        | diagnostics.keep_metrics(keep, log_ratio, advantages_, entropies, mask)
        | diagnostics.policy_metrics(log_ratio, advantages_, policy_entropies, entropies, mask)
    )


def _call(
    algorithm: row_lib.Algorithm, field: str, available: dict[str, Any], state: State
) -> tuple[Any, State]:
    """Calls a part with the arrays that its signature names: (result, state after it)."""
    part = getattr(algorithm, field)
    arrays = _arrays_of(algorithm, field, part, available)
    if part.init is None:
        return part.chosen(*arrays, **part.settings), state
    result, after = part.chosen(state[field], *arrays, **part.settings)
    return result, {**state, field: after}


def _arrays_of(
    algorithm: row_lib.Algorithm, field: str, part: parts.Part, available: dict[str, Any]
) -> list[Any]:
    missing = [name for name in part.reads if name not in available]
    if missing:
        raise ValueError(
            f"algorithm {algorithm.name!r}: {field} ({part.chosen.__name__}) reads {missing}, "
            f"which this batch does not hold; it holds {sorted(available)}"
        )
    return [available[name] for name in part.reads]
