"""KLPO, token route: each sampled token is fitted on its own, without an importance ratio.

With sampler q, current policy p and ell = log p(a) - log q(a) of the sampled token, the loss is

    -sg(keep (A - beta ell)) x score,      score: one of the four kernels of `klpo_kernels`

on each token. The published form has A = R, the reward of the trajectory, and keep = 1: because
the score has mean 0 under q, any baseline that does not depend on the token leaves the expected
gradient as it is. A reward of 0 still trains: -beta ell pulls p back to q. The fixed point is
p = q exp(Q / beta) / Z. Use the reduction "sequence_sum". See "KL-Regularized Policy Optimization"
(arXiv 2610.08963); beta 0.1.

All functions read, per token of any shape,

    policy_logprobs: of the current weights; carries the gradient.
    rollout_logprobs: as recorded by the sampler.
    advantages: the reward of the token's trajectory, or that minus a baseline; stop-gradient.
    keep: multiplies the loss of the token; stop-gradient.
    action_mask: bool. Where False all others may hold anything.

and what their kernel needs to know of the sampler, and return

    per_token_loss: 0 where action_mask is False.
    weights: keep, stop-gradient.
    metrics: (sum, weight) pairs by name.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.objectives import klpo_kernels
from jaxrl_single.ops import masked

Loss = tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]


def token_full(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    full_policy_logprobs: jax.Array,
    full_rollout_logprobs: jax.Array,
    *,
    beta: float,
) -> Loss:
    """With the whole distribution of the sampler: exact.

    Args:
      policy_logprobs, rollout_logprobs, advantages, keep, action_mask: see the module.
      full_policy_logprobs: [..., V], finite wherever q > 0; carries the gradient too.
      full_rollout_logprobs: [..., V], -inf where q = 0.
      beta: >= 0, weight of the KL.
    """
    kernel = klpo_kernels.full(
        policy_logprobs, rollout_logprobs, action_mask, full_policy_logprobs, full_rollout_logprobs
    )
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    return _loss(kernel, log_ratio, advantages, keep, action_mask, beta=beta)


def token_mc(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    aux_policy_logprobs: jax.Array,
    aux_rollout_logprobs: jax.Array,
    *,
    beta: float,
) -> Loss:
    """With M >= 1 independent draws of the sampler at each token's prefix: unbiased.

    Args:
      policy_logprobs, rollout_logprobs, advantages, keep, action_mask: see the module.
      aux_policy_logprobs: [..., M], of the draws; carries the gradient too.
      aux_rollout_logprobs: [..., M]; for the metrics only.
      beta: >= 0, weight of the KL.

    Raises:
      ValueError: there are no draws.
    """
    kernel = klpo_kernels.mc(
        policy_logprobs, rollout_logprobs, action_mask, aux_policy_logprobs, aux_rollout_logprobs
    )
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    return _loss(kernel, log_ratio, advantages, keep, action_mask, beta=beta)


def token_topk(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    topk_policy_logprobs: jax.Array,
    topk_rollout_logprobs: jax.Array,
    *,
    beta: float,
    tail_floor: float,
) -> Loss:
    """With the K likeliest tokens of the sampler: biased by the KL within the other tokens.

    Args:
      policy_logprobs, rollout_logprobs, advantages, keep, action_mask: see the module.
      topk_policy_logprobs: [..., K], of the sampler's K tokens; carries the gradient too.
      topk_rollout_logprobs: [..., K]; a token with -inf counts as one of the others.
      beta: >= 0, weight of the KL.
      tail_floor: > 0, the least probability of the other tokens; published 1e-6.
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
    return _loss(kernel, log_ratio, advantages, keep, action_mask, beta=beta)


def token_binary(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    *,
    beta: float,
) -> Loss:
    """With the sampled token's probability alone: biased by the KL within all other tokens.

    Args:
      policy_logprobs, rollout_logprobs, advantages, keep, action_mask: see the module.
      beta: >= 0, weight of the KL.
    """
    kernel = klpo_kernels.binary(policy_logprobs, rollout_logprobs, action_mask)
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    return _loss(kernel, log_ratio, advantages, keep, action_mask, beta=beta)


def _loss(kernel: klpo_kernels.Kernel, log_ratio, advantages, keep, mask, *, beta: float) -> Loss:
    score, centred, metrics = kernel
    advantages, keep = masked.clean(advantages, mask), masked.clean(keep, mask)
    coefficient, keep = jax.lax.stop_gradient((advantages - beta * log_ratio, keep))
    tokens = masked.count(mask)
    metrics = metrics | {
        "policy/return_coefficient": (masked.total(coefficient, mask), tokens),
        "policy/return_coefficient_abs": (masked.total(jnp.abs(coefficient), mask), tokens),
        "policy/kernel_kl": (masked.total(centred - log_ratio, mask), tokens),
    }
    return -(keep * coefficient) * score, keep, jax.lax.stop_gradient(metrics)
