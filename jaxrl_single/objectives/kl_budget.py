"""A step no longer than a budget of KL divergence between the policies before and after it.

Moving the logits z of a softmax of temperature tau by d changes its distribution p by

    KL(p || p') = Var_{v ~ p}(d_v) / (2 tau^2)

up to third order in d. For a proposed step of the parameters d grows with the step and the
divergence with its square, so `step_scale` can shorten the step in one go. See "KLPO"
(arXiv 2610.08963), which predicts d by a directional derivative; trainer/kl_step.py takes the
difference of two forward passes, because our products have hand-written gradients, which JAX cannot
differentiate forwards.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def position_kl(logprobs: jax.Array, change: jax.Array, temperature: jax.Array) -> jax.Array:
    """Predicted KL divergence at each position, in nats: Var_{v ~ p}(change) / (2 tau^2).

    Args:
      logprobs: [..., V], log p at the temperature of sampling; -inf for a forbidden token, whose
        change may be anything.
      change: [..., V], of the logits before division by the temperature.
      temperature: [...], tau > 0 wherever the result is used.

    Returns:
      [...], at least float32, >= 0.
    """
    change = masked.clean(change, logprobs != -jnp.inf)
    probabilities = jnp.exp(masked.as_float(logprobs))
    mean = jnp.sum(probabilities * change, axis=-1, keepdims=True)
    variance = jnp.sum(probabilities * jnp.square(change - mean), axis=-1)
    return variance / (2.0 * jnp.square(masked.as_float(temperature)))


def predicted_kl(
    logprobs: jax.Array,
    change: jax.Array,
    temperature: jax.Array,
    action_mask: jax.Array,
    *,
    denominator: jax.Array | None = None,
) -> jax.Array:
    """Mean of `position_kl` over the counted tokens, a scalar; 0 when nothing counts.

    Args:
      logprobs, change, temperature: as for `position_kl`; anything where action_mask is False.
      action_mask: bool [...].
      denominator: what to divide by instead of the number of counted tokens: their number in the
        whole batch, if this is a part of it. The parts then add up.
    """
    per_token = position_kl(logprobs, change, temperature)
    return masked.mean(per_token, action_mask, denominator=denominator)


def step_scale(predicted: jax.Array, *, budget: float, max_scale: float) -> jax.Array:
    """min(max_scale, sqrt(budget / predicted)): the factor on a step of that predicted KL.

    Args:
      predicted: nats, scalar.
      budget: nats, > 0.
      max_scale: > 0, for a step that is far below the budget; 1 never lengthens it.

    Returns:
      A scalar in [0, max_scale]; 0 where `predicted` is not positive and finite: such a step either
      changes nothing or cannot be trusted.
    """
    predicted = masked.as_float(predicted)
    usable = (predicted > 0) & jnp.isfinite(predicted)
    scale = jnp.minimum(max_scale, jnp.sqrt(budget / jnp.where(usable, predicted, 1.0)))
    return jnp.where(usable, scale, 0.0)


def scaled_step(step: Any, scale: jax.Array) -> Any:
    """scale x step, leaf by leaf in its own dtype; zeros for scale 0 even if a leaf is not finite.

    Args:
      step: pytree.
      scale: scalar from `step_scale`.
    """

    def of_leaf(leaf: jax.Array) -> jax.Array:
        return jnp.where(scale > 0, leaf * scale.astype(leaf.dtype), jnp.zeros_like(leaf))

    return jax.tree.map(of_leaf, step)
