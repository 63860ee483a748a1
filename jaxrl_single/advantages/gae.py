"""Generalised advantage estimation of one uninterrupted stream of actions."""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def gae(
    rewards: jax.Array,
    values: jax.Array,
    bootstrap_value: jax.Array | float,
    *,
    discount: jax.Array | float,
    lambda_: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """Advantages by a backward recursion over t.

        delta_t = r_t + discount V_{t+1} - V_t
        A_t     = delta_t + discount lambda_t A_{t+1}

    See "High-Dimensional Continuous Control Using Generalized Advantage Estimation" by Schulman et
    al., eq. 16 (arXiv 1506.02438).

    Args:
      rewards: [T].
      values: [T], of the state before each action.
      bootstrap_value: scalar V_T: 0 after a terminal state, the value after the last action if the
        episode was cut.
      discount: scalar in [0, 1].
      lambda_: scalar or [T], in [0, 1].

    Returns:
      advantages, returns: [T] float32, returns = advantages + values (the lambda-return). Both are
      stop-gradient.
    """
    chex.assert_rank([rewards, values], 1)
    chex.assert_equal_shape([rewards, values])
    rewards, values = masked.as_float(rewards), masked.as_float(values)
    next_values = jnp.append(values[1:], jnp.asarray(bootstrap_value, values.dtype))
    deltas = rewards + discount * next_values - values
    decays = jnp.broadcast_to(jnp.asarray(discount * lambda_, deltas.dtype), deltas.shape)

    def step(next_advantage, inputs):
        delta, decay = inputs
        advantage = delta + decay * next_advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(step, jnp.zeros((), deltas.dtype), (deltas, decays), reverse=True)
    return jax.lax.stop_gradient((advantages, advantages + values))
