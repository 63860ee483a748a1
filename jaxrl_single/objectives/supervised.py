"""The loss of the warm start on demonstrations."""

import jax

from jaxrl_single.ops import masked


def negative_log_likelihood(policy_logprobs: jax.Array, action_mask: jax.Array) -> jax.Array:
    """-log pi per token.

    Args:
      policy_logprobs: per token, of the current weights; carries the gradient.
      action_mask: bool per token: the tokens to imitate. Where False log-probs may be anything.

    Returns:
      per_token_loss: float32, 0 where action_mask is False.
    """
    return -masked.clean(policy_logprobs, action_mask)
