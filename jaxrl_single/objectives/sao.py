"""The importance-weighted score function of SAO, and with `none` as keep rule of REINFORCE."""

import jax

from jaxrl_single.objectives import score
from jaxrl_single.ops import masked


def sao(
    policy_logprobs: jax.Array,
    rollout_logprobs: jax.Array,
    advantages: jax.Array,
    keep: jax.Array,
    action_mask: jax.Array,
) -> tuple[jax.Array, jax.Array, dict[str, tuple[jax.Array, jax.Array]]]:
    """-sg(ratio x keep x A) log pi per token, ratio = policy / rollout.

    See "SAO" (arXiv 2607.07508), eq. 1. The stop-gradient on the ratio makes the gradient
    -ratio x keep x A x grad log pi, that of -ratio x A inside the kept band; without it a factor
    (1 + log pi) appears, which changes sign for log pi < -1.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      rollout_logprobs: per token, as recorded by the sampler.
      advantages: per token.
      keep: per token in [0, 1], from a keep rule.
      action_mask: bool per token. Where False all others may hold anything.

    Returns:
      per_token_loss: 0 where action_mask is False.
      weights: ratio x keep per token, stop-gradient.
      metrics: none.
    """
    log_ratio = masked.safe_log_ratio(policy_logprobs, rollout_logprobs, action_mask)
    weight = masked.ratio(log_ratio) * masked.clean(keep, action_mask)
    return score.score(policy_logprobs, advantages, weight, action_mask)
