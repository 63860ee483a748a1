"""Composes a row of the table into advantages and a policy loss.

Arrays per token may have any shape ([T], [B, T], [M, B, T]), as long as their row-major order is
the order of the token stream.
"""

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_single.algorithms import diagnostics, table
from jaxrl_single.ops import masked, reduce, segments

State = Any  # pytree of a stateful advantage or a calibrated rule; {} for rows without one


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdvantageArrays:
    """What an advantage may read, over the whole batch.

    Attributes:
      rewards: per token, on action tokens.
      action_mask: bool per token.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding; trajectories are contiguous.
      reward: [N], sum of the trajectory's rewards.
      group: i32 [N], trajectories of the same task share a number.
      valid: bool [N], False on padding trajectories.
      values: per token, of the prefix before it; None without a critic.
      bootstrap_values: [N], the value after the last token, 0 where terminated; None without a
        critic.
    """

    rewards: jax.Array
    action_mask: jax.Array
    trajectory_index: jax.Array
    reward: jax.Array
    group: jax.Array
    valid: jax.Array
    values: jax.Array | None = None
    bootstrap_values: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdvantageOutput:
    """Per token, 0 off the action mask; `returns` are the critic's targets (0 without a critic)."""

    advantages: jax.Array
    returns: jax.Array
    state: State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyArrays:
    """What the policy loss of one micro-batch reads. All but `denominator` are per token.

    Attributes:
      policy_logprobs: of the current weights; the gradient flows through them.
      policy_entropies: nats, of the current weights; for metrics.
      rollout_logprobs: as recorded by the sampler.
      entropies: nats, as recorded by the sampler.
      advantages: from `advantages`.
      loss_mask: bool, the tokens to train. Where False all others may hold anything.
      trajectory_lengths: f32, from `reduction_inputs`.
      denominator: f32 scalar, from `reduction_inputs`: of the whole batch.
      proximal_logprobs: recomputed by the trainer before the first update on the batch; needed by
        rows with ratio_reference "proximal".
    """

    policy_logprobs: jax.Array
    policy_entropies: jax.Array
    rollout_logprobs: jax.Array
    entropies: jax.Array
    advantages: jax.Array
    loss_mask: jax.Array
    trajectory_lengths: jax.Array
    denominator: jax.Array
    proximal_logprobs: jax.Array | None = None


def init_state(algorithm: table.Algorithm) -> State:
    """The state before the first update, part of the train state; {} as no row keeps any yet."""
    del algorithm
    return {}


def reduction_inputs(
    algorithm: table.Algorithm,
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
    algorithm: table.Algorithm, arrays: AdvantageArrays, state: State
) -> AdvantageOutput:
    """Advantages and critic targets of the whole batch. All outputs are stop-gradient.

    Raises:
      ValueError: the row reads an array that is None.
    """
    shape, mask = arrays.action_mask.shape, arrays.action_mask.reshape(-1)
    flat = {
        field.name: None if value is None else value.reshape(-1)
        for field in dataclasses.fields(arrays)
        for value in [getattr(arrays, field.name)]
    }
    result = _call(algorithm, algorithm.advantage, flat)
    if algorithm.advantage_level == "token":
        per_token, returns = result
    else:
        per_token = masked.clean(segments.spread(result, flat["trajectory_index"]), mask)
        returns = jnp.zeros_like(per_token)
    return AdvantageOutput(per_token.reshape(shape), returns.reshape(shape), state)


def policy_loss(
    algorithm: table.Algorithm, arrays: PolicyArrays, state: State
) -> tuple[jax.Array, tuple[diagnostics.Metrics, State]]:
    """The share of one micro-batch in the loss of the batch; shares and metrics are to be summed.

    Returns:
      loss: float32 scalar, differentiable in policy_logprobs.
      (metrics, state): metrics are (sum, weight) pairs, see `diagnostics.means`.

    Raises:
      ValueError: the row reads an array that is None.
    """
    mask = arrays.loss_mask
    available = {field.name: getattr(arrays, field.name) for field in dataclasses.fields(arrays)}
    log_ratio = jax.lax.stop_gradient(
        masked.safe_log_ratio(arrays.policy_logprobs, arrays.rollout_logprobs, mask)
    )
    available |= {"action_mask": mask, "log_ratio": log_ratio}
    keep = _call(algorithm, algorithm.keep_rule, available)
    if algorithm.correction is not None:
        keep = keep * _call(algorithm, algorithm.correction, available)
    available["keep"] = jax.lax.stop_gradient(keep)
    if algorithm.ratio_reference == "proximal":
        available["rollout_logprobs"] = arrays.proximal_logprobs
    per_token, metrics = _call(algorithm, algorithm.objective, available)
    loss = reduce.REDUCTIONS[algorithm.reduction](
        per_token,
        mask,
        trajectory_lengths=arrays.trajectory_lengths,
        denominator=arrays.denominator,
    )
    metrics |= diagnostics.keep_metrics(
        available["keep"], log_ratio, arrays.advantages, arrays.entropies, mask
    )
    metrics |= diagnostics.policy_metrics(
        log_ratio, arrays.advantages, arrays.policy_entropies, arrays.entropies, mask
    )
    return loss, (jax.lax.stop_gradient(metrics), state)


def score_coefficients(algorithm: table.Algorithm, arrays: PolicyArrays, state: State) -> jax.Array:
    """Minus the gradient of the loss with respect to each token's policy log-prob, per token.

    It is how strongly the update pushes each token up (> 0) or down (< 0), and all that
    distinguishes one algorithm from another.
    """

    def loss(policy_logprobs):
        replaced = dataclasses.replace(arrays, policy_logprobs=policy_logprobs)
        return policy_loss(algorithm, replaced, state)[0]

    return -jax.grad(loss)(arrays.policy_logprobs)


def _call(algorithm: table.Algorithm, part: table.Part, available: dict[str, Any]) -> Any:
    """Calls the part's function with the arrays that its signature names."""
    parameters = inspect.signature(part.function).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    held = {name for name, array in available.items() if array is not None}
    missing = [name for name in names if name not in held]
    if missing:
        raise ValueError(
            f"algorithm {algorithm.name!r}: {part.function.__name__} reads {missing}, which this "
            f"batch does not hold; it holds {sorted(held)}"
        )
    return part.function(*(available[name] for name in names), **part.hyperparameters)
