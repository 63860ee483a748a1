"""KPop: drops tokens whose two-event divergence is large in either direction."""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import divergences, masked

EPS = 1e-8  # bounds the probabilities inside the logarithms


def kpop(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    action_mask: jax.Array,
    *,
    threshold: float,
) -> jax.Array:
    """1 where max(kl2(policy, rollout), kl2(rollout, policy)) <= threshold, else 0.

    kl2 is the KL divergence of the events "this token" and "another token". Unlike a band of
    ratios it does not drop every unlikely token whose ratio happens to be wild. See
    https://ringtech.notion.site/kpop. The authors' threshold is 0.1; others use
    2.0 and, beside a band of ratios, 0.9.

    Args:
      policy_logprobs, rollout_logprobs: per token; anything where action_mask is False.
      action_mask: bool per token.
      threshold: nats, the largest divergence kept.

    Returns:
      keep: float32 in {0, 1} per token, stop-gradient; 0 where action_mask is False.
    """
    policy = jax.lax.stop_gradient(masked.clean(policy_logprobs, action_mask))
    rollout = masked.clean(rollout_logprobs, action_mask)
    divergence = jnp.maximum(
        divergences.kl2(policy, rollout, eps=EPS), divergences.kl2(rollout, policy, eps=EPS)
    )
    return ((divergence <= threshold) & action_mask).astype(jnp.float32)
