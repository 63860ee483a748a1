"""TRM, trust-region masking: drops whole trajectories, by exact or estimated KL divergences.

See "Trust Region Masking" (arXiv 2512.23075). A trajectory is kept when the divergence of rollout
to policy stays within the limits; a dropped one stays in the denominators. Only the exact form
carries the paper's bound on the improvement. The others judge a position by its sampled token
alone: with log_ratio = log(policy / rollout), k2 = log_ratio^2 / 2 and
k3 = ratio - 1 - log_ratio.

All return keep in {0, 1} per token, float32, stop-gradient, 0 where `action_mask` is False, where
all other arrays may hold anything. Limits are in nats, closed; infinity switches one off.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.keep_rules import limits
from jaxrl_single.ops import divergences, masked


def trm(
    full_policy_logprobs: jax.Array,
    full_rollout_logprobs: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    max_kl: float,
    mean_kl: float,
) -> jax.Array:
    """Largest KL of a position <= max_kl, and mean over the positions <= mean_kl.

    Published: 0.05 and 0.001, each alone; 0.1 and 0.002 together.

    Args:
      full_policy_logprobs, full_rollout_logprobs: [..., V] whole rows; a rollout row may hold
        -inf.
      action_mask: bool per token.
      trajectory_index: i32 per token.
      num_trajectories: N, static.
      max_kl, mean_kl: the limits.
    """
    rows = action_mask[..., None]
    policy = jax.lax.stop_gradient(masked.clean(full_policy_logprobs, rows))
    kl = divergences.full_kl(masked.clean(full_rollout_logprobs, rows), policy)
    owners = (action_mask, trajectory_index, num_trajectories)
    max_inside = limits.all_within(kl, *owners, limit=max_kl)
    mean_inside = limits.mean_within(kl, *owners, limit=mean_kl)
    return (max_inside & mean_inside).astype(jnp.float32)


def trm_k2_max(
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    limit: float,
) -> jax.Array:
    """Largest k2 of a token <= limit."""
    k2 = divergences.k2(jax.lax.stop_gradient(masked.clean(log_ratio, action_mask)))
    inside = limits.all_within(k2, action_mask, trajectory_index, num_trajectories, limit=limit)
    return inside.astype(jnp.float32)


def trm_k3_max(
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    limit: float,
) -> jax.Array:
    """Largest k3 of a token <= limit."""
    k3 = divergences.k3(jax.lax.stop_gradient(masked.clean(log_ratio, action_mask)))
    inside = limits.all_within(k3, action_mask, trajectory_index, num_trajectories, limit=limit)
    return inside.astype(jnp.float32)


def trm_k3_mean(
    log_ratio: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    num_trajectories: int,
    *,
    limit: float,
) -> jax.Array:
    """Mean k3 of the tokens <= limit."""
    k3 = divergences.k3(jax.lax.stop_gradient(masked.clean(log_ratio, action_mask)))
    inside = limits.mean_within(k3, action_mask, trajectory_index, num_trajectories, limit=limit)
    return inside.astype(jnp.float32)
