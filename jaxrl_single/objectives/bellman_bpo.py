"""Bellman Policy Optimization in its practical form: a smooth, capped weight on the score.

The name BPO is also that of Branching Policy Optimization, which is another method.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.objectives import score
from jaxrl_single.ops import masked


def bellman_bpo(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    *,
    eps: float,
    cap: float,
) -> tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
    """-sg(min(omega, cap) x keep x A) log pi per token, omega = (1 + eps - mu) / (1 + eps - pi).

    mu and pi are the probabilities of the token under the rollout and the current policy. See
    "Bellman Policy Optimization" (arXiv 2609.15987), practical version: eps 0.1, cap 3. With eps =
    0, omega is the factor on the score in the gradient of log pi + kl(mu, pi), the two-event KL
    divergence of "this token or another". eps keeps omega within eps / (1 + eps) and its inverse.

    Its mask drops by the omega before the cap and is a keep rule: `omega_mask`, with the same eps.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs: per token, as recorded by the sampler.
      advantages: per token; stop-gradient.
      keep: per token in [0, 1], from a keep rule; stop-gradient.
      action_mask: bool per token. Where False all others may hold anything.
      eps: > 0; without it omega has no bound where pi is 1.
      cap: > 0, the largest omega that is applied.

    Returns:
      per_token_loss: 0 where action_mask is False.
      weights: min(omega, cap) x keep per token, stop-gradient.
      metrics: (sum, weight) pairs by name.
    """
    rollout = jnp.exp(masked.clean(rollout_logprobs, action_mask))
    policy = jnp.exp(masked.clean(policy_logprobs, action_mask))
    omega = jax.lax.stop_gradient((1.0 + eps - rollout) / (1.0 + eps - policy))
    keep = jax.lax.stop_gradient(masked.clean(keep, action_mask))
    weight = jnp.minimum(omega, cap) * keep
    loss, weights, _ = score.score(policy_logprobs, advantages, weight, action_mask)
    tokens = masked.count(action_mask)
    num_capped = masked.total((omega > cap) & (keep > 0), action_mask)
    metrics = {
        "policy/omega_mean": (masked.total(omega, action_mask), tokens),
        "policy/clip_fraction": (num_capped, tokens),
    }
    return loss, weights, metrics
