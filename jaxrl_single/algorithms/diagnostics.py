"""Metrics of a policy update, as (sum, weight) pairs.

Pairs of micro-batches and devices are added and divided once at the end (`means`), so that a metric
is the same for every split of the batch.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked

Metrics = dict[str, tuple[jax.Array, jax.Array]]

LOG_RATIO_QUANTILES = {
    "policy/log_ratio_q00": 0.0,
    "policy/log_ratio_q01": 0.01,
    "policy/log_ratio_q05": 0.05,
    "policy/log_ratio_q25": 0.25,
    "policy/log_ratio_q50": 0.5,
    "policy/log_ratio_q75": 0.75,
    "policy/log_ratio_q95": 0.95,
    "policy/log_ratio_q99": 0.99,
    "policy/log_ratio_q100": 1.0,
}


def keep_metrics(
    keep: jax.Array,
    log_ratio: jax.Array,
    advantages: jax.Array,
    entropies: jax.Array,
    mask: jax.Array,
) -> Metrics:
    """What a keep rule kept, and what it dropped.

    Args:
      keep: per token in [0, 1].
      log_ratio: per token, log(policy / rollout).
      advantages: per token.
      entropies: per token, nats, of the sampler.
      mask: bool per token, the loss mask.

    Returns:
      keep/fraction of all tokens, of those with A > 0 and of those with A < 0; keep/masked_low and
      keep/masked_high: the fraction dropped with a ratio below and above 1; keep/entropy_kept and
      keep/entropy_masked: mean entropy of either population.
    """
    keep = masked.clean(keep, mask)
    dropped = masked.clean(1.0 - keep, mask)
    everyone = masked.count(mask)

    def kept_of(part):
        return masked.total(keep, mask & part), masked.count(mask & part)

    return {
        "keep/fraction": (jnp.sum(keep), everyone),
        "keep/fraction_positive": kept_of(advantages > 0),
        "keep/fraction_negative": kept_of(advantages < 0),
        "keep/masked_low": (masked.total(dropped, mask & (log_ratio < 0)), everyone),
        "keep/masked_high": (masked.total(dropped, mask & (log_ratio > 0)), everyone),
        "keep/entropy_kept": (masked.total(keep * entropies, mask), jnp.sum(keep)),
        "keep/entropy_masked": (masked.total(dropped * entropies, mask), jnp.sum(dropped)),
    }


def policy_metrics(
    log_ratio: jax.Array,
    advantages: jax.Array,
    policy_entropies: jax.Array,
    entropies: jax.Array,
    mask: jax.Array,
) -> Metrics:
    """How far the policy is from the sampler, and how random both are.

    Args:
      log_ratio: per token, log(policy / rollout).
      advantages: per token.
      policy_entropies: per token, nats, of the current weights.
      entropies: per token, nats, of the sampler.
      mask: bool per token, the loss mask.

    Returns:
      Means of ratio, log ratio, advantage and entropy, and three measures of the distance per token
      (http://joschu.net/blog/kl-approx.html): policy/k1 = -log ratio and policy/k3 = ratio - 1 -
      log ratio, both estimates of KL(rollout || policy), and policy/chi2 = ratio^2 - 1.
    """
    log_ratio = masked.clean(log_ratio, mask)
    ratio = masked.ratio(log_ratio)
    everyone = masked.count(mask)
    per_token = {
        "policy/ratio_mean": ratio,
        "policy/log_ratio_mean": log_ratio,
        "policy/log_ratio_abs": jnp.abs(log_ratio),
        "policy/k1": -log_ratio,
        "policy/k3": ratio - 1.0 - log_ratio,
        "policy/chi2": jnp.square(ratio) - 1.0,
        "policy/entropy": policy_entropies,
        "policy/sampler_entropy": entropies,
        "policy/advantage_mean": advantages,
        "policy/advantage_abs": jnp.abs(advantages),
    }
    return {name: (masked.total(x, mask), everyone) for name, x in per_token.items()}


def means(metrics: Metrics) -> dict[str, jax.Array]:
    """Divides each sum by its weight; NaN where the weight is 0: there was nothing to measure."""
    return {
        name: jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), jnp.nan)
        for name, (total, weight) in metrics.items()
    }


def log_ratio_quantiles(
    policy_logprobs: jax.Array, rollout_logprobs: jax.Array, mask: jax.Array
) -> dict[str, jax.Array]:
    """Quantiles of log(policy / rollout) over the whole batch, by the names LOG_RATIO_QUANTILES."""
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, mask)
    values = masked.quantiles(log_ratio, mask, tuple(LOG_RATIO_QUANTILES.values()))
    return dict(zip(LOG_RATIO_QUANTILES, values, strict=True))
