"""KLPO's kernels: four ways to centre the score of a sampled token under the sampler.

q is the sampler, p the current policy, a the sampled token, ell = log p(a) - log q(a). Centred
means: of mean 0 under q, whatever came before. Centred are ell + KL(q || p) and its gradient, the
score grad log p(a) - E_q[grad log p]. The kernels differ in how much of q they know:

    full    all of q                               exact
    mc      M draws from q, independent of a       unbiased
    topk    q on K tokens, the mass of the others  lacks the KL within the others
    binary  q(a) alone                             lacks the KL within all tokens but a

What the last two lack is never negative. Its gradient is their bias: the approximate score is the
exact one minus it. See "KL-Regularized Policy Optimization" (arXiv 2610.08963).

Each kernel reads log-probs of p that carry the gradient, and returns per token

    score: differentiable; its gradient is that of ell + KL, with the KL as the kernel knows it.
    centred: the value of that ell + KL, stop-gradient.
    metrics: (sum, weight) pairs by name, stop-gradient.

Both arrays are 0 where the mask is False. There the inputs may hold anything.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import divergences, masked

Kernel = tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]

# A token 22 nats ahead has log-prob 0 in float32, and the other tokens would have probability 0.
# Float32's spacing below 1 is 6e-8, so nearer to 0 there are only rounding errors anyway.
SATURATED = -6e-8


def full(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    action_mask: jax.Array,
    full_policy_logprobs: jax.Array,
    full_rollout_logprobs: jax.Array,
) -> Kernel:
    """score = log p(a) - sum_v q(v) log p(v).

    Args:
      policy_logprobs, rollout_logprobs: per token, of the sampled token.
      action_mask: bool per token.
      full_policy_logprobs: [..., V], finite wherever q > 0.
      full_rollout_logprobs: [..., V], -inf where q = 0; such an entry counts nowhere.
    """
    log_p, log_q, q = _recorded(full_policy_logprobs, full_rollout_logprobs, action_mask)
    score = masked.clean(policy_logprobs, action_mask) - jnp.sum(q * log_p, axis=-1)
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    return score, jax.lax.stop_gradient(log_ratio + divergences.full_kl(log_q, log_p)), {}


def mc(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    action_mask: jax.Array,
    aux_policy_logprobs: jax.Array,
    aux_rollout_logprobs: jax.Array,
) -> Kernel:
    """score = log p(a) - mean_j log p(v_j).

    The draws v_j come from q at the token's own prefix, with replacement and independent of a,
    which is never reused as a draw. The estimate of the KL, the mean of log q(v_j) - log p(v_j),
    may be negative and is not clipped.

    Args:
      policy_logprobs, rollout_logprobs: per token, of the sampled token.
      action_mask: bool per token.
      aux_policy_logprobs, aux_rollout_logprobs: [..., M], of the draws.

    Raises:
      ValueError: there are no draws.
    """
    scores, centred = mc_each(
        policy_logprobs, rollout_logprobs, action_mask, aux_policy_logprobs, aux_rollout_logprobs
    )
    if scores.shape[-1] == 0:
        raise ValueError("the kernel 'mc' needs at least one auxiliary draw per token, got 0")
    return jnp.mean(scores, axis=-1), jnp.mean(centred, axis=-1), {}


def mc_each(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    action_mask: jax.Array,
    aux_policy_logprobs: jax.Array,
    aux_rollout_logprobs: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """score and centred of `mc` from each draw alone, [..., M]."""
    counted = action_mask[..., None]
    aux_policy = masked.clean(aux_policy_logprobs, counted)
    aux_log_ratio = aux_policy - masked.clean(aux_rollout_logprobs, counted)
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    scores = masked.clean(policy_logprobs, action_mask)[..., None] - aux_policy
    return scores, jax.lax.stop_gradient(log_ratio[..., None] - aux_log_ratio)


def topk(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    action_mask: jax.Array,
    topk_policy_logprobs: jax.Array,
    topk_rollout_logprobs: jax.Array,
    *,
    tail_floor: float,
) -> Kernel:
    """score = log p(a) - sum_v (q(v) - rho p(v)) log p(v) over K tokens, rho = q_tail / p_tail.

    Exact if at most one token lies outside the K. A tail below `tail_floor` counts as
    `tail_floor`, in the value and in rho: then the score is no longer the gradient of the KL.

    Args:
      policy_logprobs, rollout_logprobs: per token, of the sampled token, which need not be one of
        the K.
      action_mask: bool per token.
      topk_policy_logprobs: [..., K], of the tokens that the sampler recorded.
      topk_rollout_logprobs: [..., K]; a token with -inf counts as one of the tail.
      tail_floor: > 0, a probability; published 1e-6.
    """
    log_p, log_q, q = _recorded(topk_policy_logprobs, topk_rollout_logprobs, action_mask)
    listed = q != 0.0
    p = jnp.where(listed, jnp.exp(log_p), 0.0)
    tails = jnp.stack([_rest(log_p, listed), _rest(log_q, listed)])
    p_tail, q_tail = jnp.maximum(tails, tail_floor)
    coefficient = jax.lax.stop_gradient(q - (q_tail / p_tail)[..., None] * p)
    score = masked.clean(policy_logprobs, action_mask) - jnp.sum(coefficient * log_p, axis=-1)
    kl = jnp.sum(q * (log_q - log_p), axis=-1) + q_tail * jnp.log(q_tail / p_tail)
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    tokens = masked.count(action_mask)
    floored = jnp.any(tails < tail_floor, axis=0)
    metrics = {
        "policy/tail_mass": (masked.total(q_tail, action_mask), tokens),
        "policy/floored_tokens": (masked.total(floored, action_mask), tokens),
    }
    return score, *jax.lax.stop_gradient((masked.clean(log_ratio + kl, action_mask), metrics))


def binary(
    policy_logprobs: jax.Array, rollout_logprobs: jax.Array, action_mask: jax.Array
) -> Kernel:
    """score = sg(omega) log p(a), omega = (1 - q(a)) / (1 - p(a)).

    Exact with two tokens. A log-prob above SATURATED counts as SATURATED in omega and in the KL,
    and its token as saturated; log-probs clearly above 0 are an error of the caller.

    Args:
      policy_logprobs, rollout_logprobs: per token, of the sampled token.
      action_mask: bool per token.
    """
    log_p = jnp.minimum(masked.clean(policy_logprobs, action_mask), SATURATED)
    log_q = jnp.minimum(masked.clean(rollout_logprobs, action_mask), SATURATED)
    # 1 - exp(x) by expm1: the plain difference loses all digits where a probability is near 1.
    other_q = -jnp.expm1(log_q)
    omega = jax.lax.stop_gradient(other_q / -jnp.expm1(log_p))
    score = omega * masked.clean(policy_logprobs, action_mask)
    # ell + KL = ell - q ell + (1 - q) log omega, without the difference of two near equals.
    centred = jax.lax.stop_gradient(other_q * (log_p - log_q + jnp.log(omega)))
    tokens = masked.count(action_mask)
    saturated = (policy_logprobs > SATURATED) | (rollout_logprobs > SATURATED)
    metrics = {
        "policy/omega_mean": (masked.total(omega, action_mask), tokens),
        "policy/saturated_tokens": (masked.total(saturated, action_mask), tokens),
    }
    return score, centred, jax.lax.stop_gradient(metrics)


def _recorded(log_p, log_q, action_mask):
    """log p, log q and q of recorded tokens, all 0 where q is 0 or the mask is False."""
    possible = action_mask[..., None] & (log_q != -jnp.inf)  # NaN stays, to be seen
    log_p, log_q = masked.clean(log_p, possible), masked.clean(log_q, possible)
    return log_p, log_q, jax.lax.stop_gradient(jnp.where(possible, jnp.exp(log_q), 0.0))


def _rest(logprobs, listed):
    """1 - the probability of the listed tokens; at least 0."""
    # In log space, where a token of probability near 1 still has all its digits.
    head = jax.nn.logsumexp(logprobs, axis=-1, where=listed)
    return -jnp.expm1(jnp.minimum(head, 0.0))
