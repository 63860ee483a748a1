"""The smooth gate of Soft Adaptive Policy Optimization."""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def soft_gate(
    log_ratio: jax.Array,
    advantages: jax.Array,
    action_mask: jax.Array,
    *,
    tau_positive: float,
    tau_negative: float,
) -> jax.Array:
    """4 s (1 - s), s = sigmoid(tau (ratio - 1)): 1 at ratio 1, falling to 0 on both sides.

    Times the ratio it is the derivative of (4 / tau) sigmoid(tau (ratio - 1)) with respect to
    log pi, the surrogate of "Soft Adaptive Policy Optimization" (arXiv 2511.20347). Published: tau
    1.0 for A > 0 and 1.05 otherwise.

    Args:
      log_ratio: per token, log(policy / rollout); anything where action_mask is False.
      advantages: per token.
      action_mask: bool per token.
      tau_positive, tau_negative: > 0, the larger the narrower.

    Returns:
      keep: in [0, 1] per token, at least float32, stop-gradient; 0 where action_mask is False.
    """
    ratio = masked.ratio(masked.clean(log_ratio, action_mask))
    tau = jnp.where(masked.clean(advantages, action_mask) > 0, tau_positive, tau_negative)
    x = tau * (ratio - 1.0)
    # sigmoid(-x) is 1 - sigmoid(x) without its cancellation.
    gate = 4.0 * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)
    return jax.lax.stop_gradient(jnp.where(action_mask, gate, 0.0))
