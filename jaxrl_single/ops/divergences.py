"""Divergences between two policies at one position, from their log-probabilities.

All are computed from log-probs in at least float32, so that a probability next to 1 keeps its
distance to 1. They are differentiable in both arguments. Clean what lies under the mask before
calling them: log-probs of 0 there give finite values and gradients.
"""

import math

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked

LN_2 = math.log(2.0)


def log1mexp(x: jax.Array) -> jax.Array:
    """log(1 - exp(x)) for x < 0, exact to rounding near 0 and far from it; -inf at 0.

    The gradient is infinite at 0: clamp there first.
    """
    x = masked.as_float(x)
    near = x > -LN_2
    # Near 0 the branch for far gets another argument: unused, it would give a NaN gradient.
    log_far = jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x)))
    return jnp.where(near, jnp.log(-jnp.expm1(x)), log_far)


def kl2(log_p: jax.Array, log_q: jax.Array, *, eps: float) -> jax.Array:
    """KL(p || q) of the two events "this token" and "another token", in nats.

    p log(p / q) + (1 - p) log((1 - p) / (1 - q)), both probabilities clipped to [eps, 1 - eps].
    By data processing it is at most the divergence of the whole distributions.

    Args:
      log_p, log_q: log-probs of the token under the two policies, <= 0.
      eps: > 0. The clipping happens on the log-probs, so that 1e-8 works in float32 too. The
        gradient is 0 where it is active.
    """
    log_p, log_q = (_clip_logprob(x, eps=eps) for x in (log_p, log_q))
    others = log1mexp(log_p) - log1mexp(log_q)
    return jnp.exp(log_p) * (log_p - log_q) - jnp.expm1(log_p) * others


def k2(log_ratio: jax.Array) -> jax.Array:
    """log_ratio^2 / 2, an estimate of a KL divergence from one token."""
    return 0.5 * jnp.square(masked.as_float(log_ratio))


def k3(log_ratio: jax.Array) -> jax.Array:
    """exp(log_ratio) - 1 - log_ratio >= 0, an unbiased estimate of a KL divergence.

    For tokens drawn from p and log_ratio = log(q / p) its mean is KL(p || q). Constant, with
    gradient 0, above masked.MAX_LOG_RATIO.
    """
    log_ratio = jnp.minimum(masked.as_float(log_ratio), masked.MAX_LOG_RATIO)
    return jnp.expm1(log_ratio) - log_ratio


def full_kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """KL(p || q) over the whole vocabulary, in nats.

    Args:
      log_p: [..., V] log-probs; -inf has no share.
      log_q: [..., V] log-probs, finite wherever log_p is.

    Returns:
      [...].
    """
    return jnp.sum(_kl_shares(masked.as_float(log_p), masked.as_float(log_q)), axis=-1)


def topk_kl(log_p: jax.Array, log_q: jax.Array, *, tail_floor: float) -> jax.Array:
    """KL(p || q) of the K listed tokens and the event "any other", in nats.

    At most `full_kl`; the gap is p's tail mass times the divergence of the two tails.

    Args:
      log_p: [..., K] log-probs of the same K different tokens under both policies; -inf in log_p
        has no share.
      log_q: [..., K], finite wherever log_p is.
      tail_floor: > 0, see `log_tail`.

    Returns:
      [...].
    """
    log_p, log_q = masked.as_float(log_p), masked.as_float(log_q)
    log_tails = (log_tail(log_p, floor=tail_floor), log_tail(log_q, floor=tail_floor))
    return jnp.sum(_kl_shares(log_p, log_q), axis=-1) + _kl_shares(*log_tails)


def topk_tv(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """Total variation of the K listed tokens and the event "any other", in [0, 1].

    Args:
      log_p, log_q: [..., K] log-probs of the same K different tokens under both policies.

    Returns:
      [...].
    """
    p, q = jnp.exp(masked.as_float(log_p)), jnp.exp(masked.as_float(log_q))
    tails = jnp.abs(jnp.sum(p, axis=-1) - jnp.sum(q, axis=-1))
    return 0.5 * (jnp.sum(jnp.abs(p - q), axis=-1) + tails)


def log_tail(log_p: jax.Array, *, floor: float) -> jax.Array:
    """Log of the probability that K listed log-probs leave to all other tokens.

    Args:
      log_p: [..., K] log-probs of different tokens.
      floor: > 0, the smallest probability returned; the gradient is 0 where it is active. With
        float32 log-probs a tail below about 1e-7 is rounding noise.

    Returns:
      [...].
    """
    head = jax.nn.logsumexp(masked.as_float(log_p), axis=-1)
    return log1mexp(jnp.minimum(head, math.log1p(-floor)))


def complement_ratio(log_p: jax.Array, log_q: jax.Array, *, eps: float) -> jax.Array:
    """(1 + eps - q) / (1 + eps - p), in [eps / (1 + eps), (1 + eps) / eps].

    With eps = 0 it is the factor that kl2(q, p) adds to a score: the gradient of
    log p + kl2(q, p) is (1 - q) / (1 - p) times that of log p. Exactly 1 where p = q.

    Args:
      log_p, log_q: log-probs of the token under the two policies, <= 0.
      eps: > 0, bounds the ratio where p nears 1.
    """
    p, q = jnp.exp(masked.as_float(log_p)), jnp.exp(masked.as_float(log_q))
    return (1.0 + eps - q) / (1.0 + eps - p)


def _clip_logprob(log_p: jax.Array, *, eps: float) -> jax.Array:
    return jnp.clip(masked.as_float(log_p), math.log(eps), math.log1p(-eps))


def _kl_shares(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """p log(p / q) per event; 0 where p is 0, whatever q is."""
    possible = log_p != -jnp.inf
    log_ratio = jnp.where(possible, log_p, 0.0) - jnp.where(possible, log_q, 0.0)
    return jnp.exp(log_p) * log_ratio
