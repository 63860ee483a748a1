"""KLPO, sequence route: the sum over a trajectory is fitted to its reward.

With the kernels of `klpo_kernels`, and sums over the tokens of a trajectory,

    D = A - beta sum keep (ell + KL)                 residual
    loss = -sg(D) sum keep score                     gradient of D^2 / (2 beta)

Each token holds its own term of the sum; use the reduction "sequence_sum". The expected gradient
is that of the token route, for whole trajectories of the sampler, with keep = 1; gradients of
single trajectories differ. At the fixed point of an environment without chance D is the same for
every trajectory of a task. See "KL-Regularized Policy Optimization" (arXiv 2610.08963).

All functions read

    policy_logprobs: per token, of the current weights; carries the gradient.
    rollout_logprobs: per token, as recorded by the sampler.
    advantages: per token, the same on all tokens of a trajectory (their mean is used): its reward,
      or that minus a baseline; stop-gradient.
    keep: per token, multiplies the token's terms of both sums, so 0 takes the token out of its
      trajectory; stop-gradient.
    action_mask: bool per token. Where False the floats above may hold anything.
    trajectory_index: i32 per token, 0..N-1 and -1 on padding.
    num_trajectories: N, static. Trajectories must be whole.

and what their kernel needs to know of the sampler, as the functions of `klpo`, and return

    per_token_loss: 0 where action_mask is False.
    weights: keep, stop-gradient.
    metrics: (sum, weight) pairs by name.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.objectives import klpo_kernels
from jaxrl_single.ops import masked, segments

Loss = tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]


def sequence_full(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    full_policy_logprobs: jax.Array,
    full_rollout_logprobs: jax.Array,
    *,
    beta: float,
) -> Loss:
    """With the whole distribution of the sampler.

    Args:
      full_policy_logprobs, full_rollout_logprobs: [..., V], as for `klpo.token_full`.
      beta: > 0, weight of the KL.
      The others: see the module.
    """
    kernel = klpo_kernels.full(
        policy_logprobs, rollout_logprobs, action_mask, full_policy_logprobs, full_rollout_logprobs
    )
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    tokens = (advantages, keep, action_mask, trajectory_index, num_trajectories)
    return _loss(kernel, log_ratio, *tokens, beta=beta)


def sequence_mc(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    aux_policy_logprobs: jax.Array,
    aux_rollout_logprobs: jax.Array,
    *,
    beta: float,
) -> Loss:
    """With M >= 2 draws per token; the residual of each draw is taken from the other draws.

    Draw j of all tokens of a trajectory makes one residual D_j and one score. The score is
    multiplied by the mean of the other residuals: multiplied by its own, the gradient would be
    that of the variance of the draws as well. The loss belongs to the metric
    "policy/regression_loss", the mean of D_j D_l / (2 beta) over j != l, which may be negative.

    Args:
      aux_policy_logprobs, aux_rollout_logprobs: [..., M], as for `klpo.token_mc`.
      beta: > 0, weight of the KL.
      The others: see the module.

    Raises:
      ValueError: M < 2.
    """
    num_draws = aux_policy_logprobs.shape[-1]
    if num_draws < 2:
        raise ValueError(
            f"sequence_mc needs at least 2 auxiliary draws per token, got {num_draws}: "
            "each residual is taken from the other draws"
        )
    scores, centred = klpo_kernels.mc_each(
        policy_logprobs, rollout_logprobs, action_mask, aux_policy_logprobs, aux_rollout_logprobs
    )
    keep = jax.lax.stop_gradient(masked.clean(keep, action_mask))
    where = (action_mask, trajectory_index, num_trajectories)
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    sums = jax.vmap(lambda x: segments.trajectory_sums(keep * x, *where), -1, -1)(centred)
    residuals = _rewards(advantages, *where)[:, None] - beta * sums  # [N, M]
    others = (jnp.sum(residuals, axis=-1, keepdims=True) - residuals) / (num_draws - 1)
    spread = jax.vmap(lambda x: segments.spread(x, trajectory_index), -1, -1)(others)
    coefficient = masked.clean(spread, action_mask[..., None])
    kl = jnp.mean(sums, axis=-1) - segments.trajectory_sums(keep * log_ratio, *where)
    square = jnp.mean(residuals * others, axis=-1)
    metrics = _metrics(jnp.mean(residuals, axis=-1), square, kl, *where, beta=beta)
    return -keep * jnp.mean(coefficient * scores, axis=-1), keep, metrics


def sequence_topk(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    topk_policy_logprobs: jax.Array,
    topk_rollout_logprobs: jax.Array,
    *,
    beta: float,
    tail_floor: float,
) -> Loss:
    """With the K likeliest tokens of the sampler; biased as `klpo.token_topk`.

    Args:
      topk_policy_logprobs, topk_rollout_logprobs: [..., K], as for `klpo.token_topk`.
      beta: > 0, weight of the KL.
      tail_floor: > 0, the least probability of the other tokens.
      The others: see the module.
    """
    kernel = klpo_kernels.topk(
        policy_logprobs,
        rollout_logprobs,
        action_mask,
        topk_policy_logprobs,
        topk_rollout_logprobs,
        tail_floor=tail_floor,
    )
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    tokens = (advantages, keep, action_mask, trajectory_index, num_trajectories)
    return _loss(kernel, log_ratio, *tokens, beta=beta)


def sequence_binary(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    beta: float,
) -> Loss:
    """With the sampled tokens' probabilities alone; biased as `klpo.token_binary`.

    Args:
      beta: > 0, weight of the KL.
      The others: see the module.
    """
    kernel = klpo_kernels.binary(policy_logprobs, rollout_logprobs, action_mask)
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    tokens = (advantages, keep, action_mask, trajectory_index, num_trajectories)
    return _loss(kernel, log_ratio, *tokens, beta=beta)


def _loss(
    kernel: klpo_kernels.Kernel,
    log_ratio,
    advantages,
    keep,
    mask,
    trajectory_index,
    num_trajectories,
    *,
    beta: float,
) -> Loss:
    score, centred, kernel_metrics = kernel
    keep = jax.lax.stop_gradient(masked.clean(keep, mask))
    where = (mask, trajectory_index, num_trajectories)
    sums = segments.trajectory_sums(keep * centred, *where)
    residual = _rewards(advantages, *where) - beta * sums
    kl = sums - segments.trajectory_sums(keep * log_ratio, *where)
    metrics = _metrics(residual, jnp.square(residual), kl, *where, beta=beta)
    coefficient = masked.clean(segments.spread(residual, trajectory_index), mask)
    return -(keep * coefficient) * score, keep, kernel_metrics | metrics


def _rewards(advantages, mask, trajectory_index, num_trajectories):
    """The advantage of each trajectory, [N]: the mean of its tokens'."""
    where = (mask, trajectory_index, num_trajectories)
    sums = segments.trajectory_sums(advantages, *where)
    return jax.lax.stop_gradient(sums / jnp.maximum(segments.lengths(*where), 1.0))


def _metrics(residual, square, kl, mask, trajectory_index, num_trajectories, *, beta: float):
    """From [N] each: the residual, an estimate of its square, the KL summed over the tokens."""
    trained = segments.lengths(mask, trajectory_index, num_trajectories) > 0
    size = masked.count(trained)
    metrics = {
        "policy/residual": (masked.total(residual, trained), size),
        "policy/residual_abs": (masked.total(jnp.abs(residual), trained), size),
        "policy/regression_loss": (masked.total(square / (2.0 * beta), trained), size),
        "policy/sequence_kl": (masked.total(kl, trained), size),
    }
    return jax.lax.stop_gradient(metrics)
