"""Sums, means, quantiles and log-ratios over the tokens that count.

Every function cleans what lies under the mask before it computes with it, so that garbage or NaN
there changes neither a value nor a gradient. NaN on a token that counts does come through.
"""

import jax
import jax.numpy as jnp

# exp(40) = 2.4e17: its square still fits in float32, and no usable ratio comes near it.
MAX_LOG_RATIO = 40.0
VARIANCE_FLOOR = 1e-8  # below it the returns count as constant


def as_float(x: jax.Array) -> jax.Array:
    """`x` in at least float32: bfloat16 is raised, float64 stays, integers get the default type."""
    return jnp.asarray(x).astype(jnp.promote_types(jnp.result_type(x, float), jnp.float32))


def clean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """`x` in at least float32 with zeros where `mask` is False; no gradient flows there."""
    return as_float(jnp.where(mask, x, jnp.zeros((), jnp.result_type(x))))


def total(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Sum of `x` where `mask` is True, a float32 scalar; 0 when nothing counts."""
    return jnp.sum(clean(x, mask))


def count(mask: jax.Array) -> jax.Array:
    """Number of True entries, a scalar of the default float type."""
    # Counted as integers: a float32 sum of ones stops growing at 2^24, a large batch's size.
    return jnp.sum(mask, dtype=jnp.int32).astype(float)


def mean(x: jax.Array, mask: jax.Array, *, denominator: jax.Array | None = None) -> jax.Array:
    """Mean of `x` where `mask` is True, a float32 scalar; 0 when nothing counts.

    Args:
      x: any shape.
      mask: bool, the shape of `x`.
      denominator: what to divide by instead of the number of counted entries, for example a count
        over all micro-batches. At least 1 is used.
    """
    if denominator is None:
        denominator = count(mask)
    return total(x, mask) / jnp.maximum(denominator, 1.0)


def safe_log_ratio(
    policy_logprobs: jax.Array, rollout_logprobs: jax.Array, mask: jax.Array
) -> jax.Array:
    """log(policy / rollout) per token in float32, exactly 0 where `mask` is False.

    Masking happens before the difference and therefore before any later `exp`: a mask applied
    after an overflowing `exp` gives the right value and a NaN gradient.
    """
    return clean(policy_logprobs, mask) - clean(rollout_logprobs, mask)


def ratio(log_ratio: jax.Array) -> jax.Array:
    """exp(log_ratio) with the exponent limited to +-MAX_LOG_RATIO, so always finite; NaN stays NaN.

    The gradient is 0 beyond the limit.
    """
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def quantiles(x: jax.Array, mask: jax.Array, qs: tuple[float, ...]) -> jax.Array:
    """Quantiles of `x` where `mask` is True, with linear interpolation as numpy's default.

    Args:
      x: any shape.
      mask: bool, the shape of `x`.
      qs: probabilities in [0, 1]; a static tuple of length Q.

    Returns:
      [Q] float32; all NaN when nothing counts or when a counted entry is NaN.
    """
    flat_mask = mask.reshape(-1)
    flat = clean(x.reshape(-1), flat_mask)
    ordered = jnp.sort(jnp.where(flat_mask, flat, jnp.inf))
    last = jnp.sum(flat_mask) - 1  # the masked entries were sorted behind it
    position = jnp.asarray(qs, flat.dtype) * last
    low = jnp.maximum(jnp.floor(position).astype(jnp.int32), 0)
    high = jnp.maximum(jnp.ceil(position).astype(jnp.int32), 0)
    weight = position - low
    # Where both neighbours are equal (infinities too) interpolation has nothing to do.
    gap = jnp.where(ordered[high] == ordered[low], 0.0, ordered[high] - ordered[low])
    undefined = (last < 0) | jnp.any(jnp.isnan(flat))
    return jnp.where(undefined, jnp.nan, ordered[low] + weight * gap)


def explained_variance(values: jax.Array, returns: jax.Array, mask: jax.Array) -> jax.Array:
    """1 - Var(returns - values) / Var(returns) over the counted tokens, a float32 scalar.

    1: the values are the returns up to a constant; 0: no better than a constant; negative: worse.
    NaN, to be skipped in averages, where the returns are constant (variance <= VARIANCE_FLOOR), as
    they are with fewer than two tokens.
    """
    returns = clean(returns, mask)
    error = returns - clean(values, mask)
    variance = _variance(returns, mask)
    undefined = variance <= VARIANCE_FLOOR
    explained = 1.0 - _variance(error, mask) / jnp.where(undefined, 1.0, variance)
    return jnp.where(undefined, jnp.nan, explained)


def _variance(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Population variance of the counted entries."""
    return mean(jnp.square(x - mean(x, mask)), mask)
