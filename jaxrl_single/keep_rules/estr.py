"""ESTR, the entropy-scaled trust region: where the sampler was unsure, the ratio may move more."""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked

State = dict[str, jax.Array]

ROUNDING = 1e-4  # largest log-ratio between two programs that compute the same, with some room


def estr_init(num_tasks: int, *, tau: float) -> State:
    """The state before the first batch: {"tau": scalar}, NaN when it has to be calibrated.

    Args:
      num_tasks: not used.
      tau: the threshold of `estr`; 0.0 asks for its calibration on the first batch.
    """
    del num_tasks
    return {"tau": jnp.asarray(tau if tau > 0 else jnp.nan, float)}


def estr(
    state: State,
    log_ratio: jax.Array,
    entropies: jax.Array,
    action_mask: jax.Array,
    *,
    masked_fraction: float,
    offset: float,
) -> tuple[jax.Array, State]:
    """1 where log_ratio^2 <= tau (entropy + offset), else 0.

    See "ESTR" (arXiv 2607.22186). A fixed band of ratios drops noisy tokens of low entropy and
    informative ones of high entropy alike, so the band widens with the square root of the entropy.
    tau is not published. Without one it is chosen on the first batch such that `masked_fraction`
    of its tokens are dropped, and kept from then on. That batch must be given whole. A batch whose
    log-ratios are those of rounding, sampled by the very parameters that are trained, tells
    nothing of later ones: all of it is kept, and the next batch is asked.

    Args:
      state: from `estr_init`.
      log_ratio: per token, log(policy / rollout); anything where action_mask is False.
      entropies: per token, nats over the whole vocabulary, as recorded by the sampler.
      action_mask: bool per token. A batch without any leaves tau to the next.
      masked_fraction: of the tokens of the first batch; 0.0007 in the published comparison.
      offset: nats, added to the entropy; published 0.01.

    Returns:
      keep: float32 in {0, 1} per token, stop-gradient; 0 where action_mask is False and where
        log_ratio or entropies are NaN, which are not calibrated on either.
      state: with tau.
    """
    log_ratio = jax.lax.stop_gradient(masked.clean(log_ratio, action_mask))
    scale = jax.lax.stop_gradient(masked.clean(entropies, action_mask)) + offset

    statistic = jnp.square(log_ratio) / scale
    readable = action_mask & ~jnp.isnan(statistic)

    def calibrated() -> jax.Array:
        tau = masked.quantiles(statistic, readable, (1.0 - masked_fraction,))[0]
        largest = jnp.max(jnp.abs(log_ratio), initial=0.0, where=readable)
        return jnp.where(largest > ROUNDING, tau, jnp.nan).astype(state["tau"].dtype)

    # The quantile sorts all tokens: only the first batch pays for that.
    tau = jax.lax.cond(jnp.isnan(state["tau"]), calibrated, lambda: state["tau"])
    # By roots, not squares: those would move a token that lies exactly on the bound.
    inside = jnp.abs(log_ratio) <= jnp.sqrt(tau * scale)
    return ((inside | jnp.isnan(tau)) & readable).astype(jnp.float32), {"tau": tau}
