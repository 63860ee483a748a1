"""CISPO: clips the weight on the score instead of the step, so that no token loses its gradient."""

import jax
import jax.numpy as jnp

from jaxrl_single.objectives import score
from jaxrl_single.ops import masked


def cispo(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
    *,
    low: float,
    high: float,
) -> tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
    """-sg(clip(ratio, 1 - low, 1 + high) x keep x A) log pi per token.

    See "MiniMax-M1" (arXiv 2506.13585), eqs. 4 and 5. Unlike PPO's clip the limits do not depend on
    the sign of the advantage, and a token beyond them still moves, by a bounded weight. With the
    published setting the lower limit is off (low = 1).

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs: per token, of the distribution in the denominator of the ratio.
      advantages: per token; stop-gradient.
      keep: per token in [0, 1], from a keep rule; stop-gradient.
      action_mask: bool per token. Where False all others may hold anything.
      low: >= 0; at 1 or more the ratio has no lower limit.
      high: >= 0.

    Returns:
      per_token_loss: 0 where action_mask is False.
      weights: clipped ratio x keep per token, stop-gradient.
      metrics: (sum, weight) pairs by name.
    """
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    ratio = jax.lax.stop_gradient(masked.ratio(log_ratio))
    clipped = jnp.clip(ratio, 1.0 - low, 1.0 + high)
    keep = jax.lax.stop_gradient(masked.clean(keep, action_mask))
    loss, weights, _ = score.score(policy_logprobs, advantages, clipped * keep, action_mask)
    num_clipped = masked.total((clipped != ratio) & (keep > 0), action_mask)
    return loss, weights, {"policy/clip_fraction": (num_clipped, masked.count(action_mask))}
