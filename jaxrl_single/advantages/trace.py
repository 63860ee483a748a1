"""TRACE: credit of single turns from how likely a frozen reference finds the right answer.

L_k is the reference's mean log-prob of the right answer given all that precedes turn k; T turns
with a result have boundaries k = 0..T.

    d_k = offset - L_k        V_k = log(d_0 / d_k)        delta_k = V_{k+1} - V_k
    c_k = sum_j discount^j delta_{k+j} / sum_j discount^j,  j < window and k + j < T
    c_k += outcome_bonus discount^(T-k) A_out               if the window reaches the last turn
    A   = A_out + credit_weight c_k                         on the action tokens of turn k

A_out is the group-normalised reward. The tokens of turn T, the answer itself, get A_out alone, and
so does everything where no boundary was scored. See "TRACE" (arXiv 2607.13988), Algorithm 1.
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.advantages import baselines
from jaxrl_single.ops import masked, segments


def trace(
    gold_logprobs: jax.Array,
    num_boundaries: jax.Array,
    reward: jax.Array,
    group: jax.Array,
    valid: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    turn_ids: jax.Array,
    *,
    offset: float,
    window: int,
    discount: float,
    outcome_bonus: float,
    credit_weight: float,
    eps: float,
) -> jax.Array:
    """Advantages per token.

    Args:
      gold_logprobs: [N, G], L_k in nats, <= 0; only the first num_boundaries of a row count.
      num_boundaries: i32 [N], T + 1; 0 and 1 both mean that no turn is credited.
      reward: [N].
      group: i32 [N], trajectories of the same task share a number.
      valid: bool [N].
      action_mask: bool per token.
      trajectory_index: i32 per token, -1 on padding.
      turn_ids: i32 per token, 0, 1, ... within a trajectory.
      offset: > 0, nats: keeps d_k from 0 where the answer is certain.
      window: >= 1, turns.
      discount: in [0, 1], per turn.
      outcome_bonus, credit_weight: see above.
      eps: >= 0, added to the standard deviation of the rewards of a group.

    Returns:
      The shape of action_mask, at least float32, stop-gradient, 0 where action_mask is False.
    """
    chex.assert_rank([num_boundaries, reward, group, valid], 1)
    outcome = baselines.group_normalised(reward, group, valid, eps=eps)
    credit = turn_credit(
        gold_logprobs,
        jnp.where(valid, num_boundaries, 0),
        outcome,
        offset=offset,
        window=window,
        discount=discount,
        outcome_bonus=outcome_bonus,
    )
    per_turn = outcome[:, None] + credit_weight * credit
    trajectory = jnp.maximum(trajectory_index, 0)
    # The last column is never credited, so turns beyond it may read it.
    per_token = per_turn[trajectory, jnp.clip(turn_ids, 0, credit.shape[1] - 1)]
    counted = action_mask & segments.spread(valid, trajectory_index)
    return jax.lax.stop_gradient(masked.clean(per_token, counted))


def turn_credit(
    gold_logprobs: jax.Array,
    num_boundaries: jax.Array,
    outcome: jax.Array,
    *,
    offset: float,
    window: int,
    discount: float,
    outcome_bonus: float,
) -> jax.Array:
    """c_k of every turn, [N, G], 0 from turn T on; `outcome` [N] is A_out, more in `trace`."""
    chex.assert_rank([gold_logprobs, num_boundaries, outcome], [2, 1, 1])
    size = gold_logprobs.shape[1]
    turn = jnp.arange(size)[None, :]
    num_turns = jnp.maximum(num_boundaries - 1, 0)[:, None]
    counted = turn < num_turns
    logprobs = masked.clean(gold_logprobs, turn < num_boundaries[:, None])
    values = -jnp.log(offset - logprobs)  # V_k without the constant log d_0
    deltas = masked.clean(jnp.roll(values, -1, axis=1) - values, counted)

    ahead = jnp.arange(size)[:, None] + jnp.arange(window)[None, :]
    weights = masked.as_float(discount ** jnp.arange(window))[None, None, :]
    weights = jnp.where(ahead[None] < num_turns[..., None], weights, 0.0)
    padded = jnp.pad(deltas, ((0, 0), (0, window)))
    smoothed = jnp.sum(weights * padded[:, ahead], axis=2)
    smoothed /= jnp.maximum(jnp.sum(weights, axis=2), 1.0)  # at least 1 where counted

    left = jnp.where(counted, num_turns - turn, 0)
    bonus = outcome_bonus * discount ** masked.as_float(left) * outcome[:, None]
    return masked.clean(smoothed + jnp.where(left <= window, bonus, 0.0), counted)
