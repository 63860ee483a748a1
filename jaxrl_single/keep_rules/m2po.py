"""M2PO: clips very stale tokens only as much as a budget of the second moment demands."""

import jax
import jax.numpy as jnp

from jaxrl_single.keep_rules import limits, one_sided
from jaxrl_single.ops import masked


def m2po(
    log_ratio: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    budget: float,
    low: float,
    high: float,
) -> jax.Array:
    """PPO's clip with bounds exp(+-tau), tau from `threshold`; everything when under budget.

    See "Prosperity before Collapse" (arXiv 2510.01161). The bounds are never tighter than
    [1 - low, 1 + high]. As in the authors' code the moment is over harmful tokens only: those that
    the update would push further from the sampler's policy. Published: budget 0.04, low 0.3, high
    0.5.

    Args:
      log_ratio: per token of the WHOLE batch, log(policy / rollout); anything where action_mask
        is False.
      advantages: per token.
      action_mask: bool per token.
      budget: of the mean of log_ratio^2 over the harmful tokens.
      low, high: >= 0.

    Returns:
      keep: float32 in {0, 1} per token, stop-gradient; 0 where action_mask is False.
    """
    lowest, highest = limits.around_one(low, high)
    tau = threshold(log_ratio, advantages, action_mask, budget=budget)
    return one_sided.clip(
        log_ratio,
        advantages,
        action_mask,
        log_low=jnp.minimum(-tau, limits.log_bound(lowest)),
        log_high=jnp.maximum(tau, limits.log_bound(highest)),
    )


def threshold(
    log_ratio: jax.Array, advantages: jax.Array, action_mask: jax.Array, *, budget: float
) -> jax.Array:
    """The largest |log_ratio| of a harmful token at which clipping all to it stays under budget.

    Let v be the squared log-ratios of the n harmful tokens, ascending. Clipped at v_k their sum is
    v_0 + ... + v_k + (n - 1 - k) v_k, which rises with k. Of the first k where it reaches
    budget x n, the entry before is the result.

    Args:
      as `m2po`.

    Returns:
      tau: a scalar, stop-gradient; 0 without an entry before, and infinity when the mean of v is
        within the budget as it is.
    """
    log_ratio = jax.lax.stop_gradient(masked.clean(log_ratio, action_mask)).reshape(-1)
    advantages = jax.lax.stop_gradient(masked.clean(advantages, action_mask)).reshape(-1)
    harmful = log_ratio * jnp.sign(advantages) > 0
    distance = jnp.sort(jnp.where(harmful, jnp.abs(log_ratio), jnp.inf))  # harmful ones first
    num_harmful = jnp.sum(harmful)
    rank = jnp.arange(distance.size)
    squares = jnp.where(rank < num_harmful, jnp.square(distance), 0.0)
    clipped_sums = jnp.cumsum(squares) + (num_harmful - 1 - rank) * squares
    reached = (clipped_sums >= budget * num_harmful) & (rank < num_harmful)
    first = jnp.argmax(reached)
    tau = jnp.where(first > 0, distance[first - 1], 0.0)
    return jnp.where(jnp.sum(squares) <= budget * num_harmful, jnp.inf, tau)
