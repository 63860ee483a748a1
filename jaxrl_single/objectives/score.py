"""The score function: a weight, an advantage and grad log pi, without any ratio of its own."""

import jax

from jaxrl_single.ops import masked


def score(
    policy_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
) -> tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
    """-sg(keep x A) log pi per token.

    Williams' REINFORCE ("Simple statistical gradient-following algorithms", 1992) where the tokens
    were sampled by the current weights. Where they were not, its expected gradient is that of the
    rollout policy, whatever the distance. Objectives that own a ratio pass ratio x keep as `keep`.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      advantages: per token; stop-gradient.
      keep: per token, >= 0; stop-gradient.
      action_mask: bool per token. Where False all others may hold anything.

    Returns:
      per_token_loss: 0 where action_mask is False.
      weights: keep per token, stop-gradient.
      metrics: none.
    """
    weight = jax.lax.stop_gradient(masked.clean(keep, action_mask))
    coefficient = weight * jax.lax.stop_gradient(masked.clean(advantages, action_mask))
    return -coefficient * masked.clean(policy_logprobs, action_mask), weight, {}
