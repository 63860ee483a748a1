"""Weights against the gap between the policy and the distribution that was sampled from.

A correction multiplies `keep` and so enters a loss as one more factor without gradient. Log-ratios
are per token and may hold anything where `action_mask` is False. All return weights >= 0 per token
in at least float32, stop-gradient, 0 where `action_mask` is False. Ratios are limited to
exp(+-masked.MAX_LOG_RATIO).
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked, segments


def token_tis(log_ratio: jax.Array, action_mask: jax.Array, *, cap: float) -> jax.Array:
    """min(ratio, cap) per token: truncated importance sampling, ratio = policy / rollout.

    For objectives without a ratio of their own. With DPPO's masks (arXiv 2602.04879) the cap is
    20 or 10000.
    """
    return _weight(
        jnp.minimum(masked.ratio(masked.clean(log_ratio, action_mask)), cap), action_mask
    )


def engine_ratio(engine_log_ratio: jax.Array, action_mask: jax.Array) -> jax.Array:
    """trainer / engine per token, both under the weights that sampled it: IcePop's k.

    See "Every Step Evolves" (arXiv 2510.18855). Use it beside the keep rule `icepop`, which bounds
    it.
    """
    return _weight(masked.ratio(masked.clean(engine_log_ratio, action_mask)), action_mask)


def engine_tis(engine_log_ratio: jax.Array, action_mask: jax.Array, *, cap: float) -> jax.Array:
    """min(proximal / rollout, cap) per token: the weight of decoupled PPO, truncated.

    See "Batch size-invariance for policy optimization" (arXiv 2110.00641), where the objective's
    own ratio is policy / proximal.
    """
    return token_tis(engine_log_ratio, action_mask, cap=cap)


def sequence_ratio(
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
) -> jax.Array:
    """The product of the trajectory's ratios, on each of its tokens.

    Args:
      log_ratio: per token, log(policy / rollout).
      action_mask: bool per token.
      trajectory_index: i32 per token, -1 on padding.
      num_trajectories: N, static.
    """
    sums = segments.trajectory_sums(log_ratio, action_mask, trajectory_index, num_trajectories)
    return _weight(segments.spread(masked.ratio(sums), trajectory_index), action_mask)


def sequence_tis(
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    cap: float,
) -> jax.Array:
    """min(product of the trajectory's ratios, cap) on each of its tokens; usual caps 2 to 10."""
    weight = sequence_ratio(log_ratio, action_mask, trajectory_index, num_trajectories)
    return jnp.minimum(weight, cap)


def _weight(weight: jax.Array, action_mask: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(jnp.where(action_mask, weight, 0.0))
