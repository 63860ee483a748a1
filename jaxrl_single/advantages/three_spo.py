"""3SPO: rewards for single turns from how often states led to success before.

Statistics per state h, counted once per trajectory that visits it: N visits, N_succ successes.

    rate  = N_succ / (N + 1e-6)          N_fail = N - N_succ          t = 1 + trajectories so far
    S(h)  = exp(-alpha log t rate) if N_fail < min_failures or rate > min_rate, else 0; 1 unseen
    n(h)  = ceil(max_group S(h))                    how many actions to try in h
    r     = w moved + (1/2 - w) (S(s) - S(s')) + 1/2 success,        w = exp(-decay N(s)) / 2
    A     = r - mean of r over the turns taken in the same state

S is near 0 where the policy nearly always succeeds or has failed long enough: tries go elsewhere.

See "State-Score-Supervised Policy Optimization" (arXiv 2606.09961), eqs. 1 to 3. There the actions
of a state are tried one step deep and the search goes on from the best; here they are the turns
that the trajectories of the batch took in that state, and all of them are judged by the statistics
before the batch. The last turn leads to no numbered state: it has not moved, its score does not
change, and it alone can earn the success.
"""

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.advantages import turns as turns_lib
from jaxrl_single.ops import grouping, masked, segments

State = dict[str, jax.Array]
RATE_EPS = 1e-6


def three_spo_init(num_tasks: int) -> State:
    """No visits: visits and successes i32 [num_tasks] (one entry per state), trajectories i32."""
    return {
        "visits": jnp.zeros(num_tasks, jnp.int32),
        "successes": jnp.zeros(num_tasks, jnp.int32),
        "trajectories": jnp.zeros((), jnp.int32),
    }


def state_score(
    visits: jax.Array,
    successes: jax.Array,
    time: jax.Array,
    *,
    alpha: float,
    min_failures: int,
    min_rate: float,
) -> jax.Array:
    """S(h) in [0, 1].

    Args:
      visits, successes: any one shape.
      time: scalar t >= 1.
      alpha: >= 0, how fast success makes a state uninteresting.
      min_failures: from so many failures on, a state with a rate <= min_rate scores 0.
      min_rate: in [0, 1]. A rate must exceed it.
    """
    visits, successes = masked.as_float(visits), masked.as_float(successes)
    rate = successes / (visits + RATE_EPS)
    alive = (visits - successes < min_failures) | (rate > min_rate)
    score = jnp.where(alive, jnp.exp(-alpha * jnp.log(masked.as_float(time)) * rate), 0.0)
    return jnp.where(visits > 0, score, 1.0)


def group_size(score: jax.Array, *, max_group: int) -> jax.Array:
    """n(h), i32: 0 ends the trajectory, 1 acts without learning, more are compared."""
    return jnp.ceil(max_group * score).astype(jnp.int32)


def step_reward(
    visits: jax.Array,
    score: jax.Array,
    next_score: jax.Array,
    moved: jax.Array,
    success: jax.Array,
    *,
    decay: float,
) -> jax.Array:
    """r of a turn; all arrays of one shape.

    Args:
      visits: N of the state before the turn.
      score, next_score: S of the state before and after.
      moved: bool, whether these states differ.
      success: bool, whether the turn reached the goal.
      decay: >= 0, per visit, of what novelty is worth.
    """
    weight = 0.5 * jnp.exp(-decay * masked.as_float(visits))
    return weight * moved + (0.5 - weight) * (score - next_score) + 0.5 * success


def three_spo(
    state: State,
    reward: jax.Array,
    valid: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    turn_ids: jax.Array,
    state_key: jax.Array,
    *,
    alpha: float,
    min_failures: int,
    min_rate: float,
    decay: float,
) -> tuple[jax.Array, State]:
    """Advantages per token, shared by the tokens of a turn.

    Args:
      state: from `three_spo_init` or the batch before.
      reward: [N]; a trajectory is a success if it is > 0.
      valid: bool [N]; where False, nothing is counted.
      action_mask: bool per token. Where False, the other arrays per token may hold anything.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding; trajectories are contiguous.
      turn_ids: i32 per token, in order within a trajectory.
      state_key: i32 per token in 0..num_tasks-1, number of the state in which its turn was taken,
        the same in every batch.
      alpha, min_failures, min_rate: see `state_score`.
      decay: see `step_reward`.

    Returns:
      advantages: per token, stop-gradient, 0 where action_mask is False; 0 also for a turn whose
        state nobody else in the batch met.
      state: after the batch.
    """
    chex.assert_rank([reward, valid], 1)
    counted = action_mask & segments.spread(valid, trajectory_index)
    turns = turns_lib.find(counted, trajectory_index, turn_ids)
    key = jnp.where(turns.exists, state_key.reshape(-1)[turns.first], 0)
    success = segments.spread(valid & (reward > 0), turns.trajectory)
    scores = state_score(
        state["visits"],
        state["successes"],
        state["trajectories"] + 1,
        alpha=alpha,
        min_failures=min_failures,
        min_rate=min_rate,
    )
    goes_on, next_key = _next(turns.trajectory, key)
    arrays = (state["visits"][key], scores[key], scores[next_key], key != next_key)
    rewards = step_reward(*arrays, success & ~goes_on, decay=decay)
    labels, _ = grouping.label((key,), turns.exists)
    advantages = turns_lib.spread(grouping.centred(rewards, labels, turns.exists), turns)
    state = _count(state, key, turns, success, valid)
    return jax.lax.stop_gradient((advantages, state))


def _next(trajectory: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether a turn of the same trajectory follows, and that one's state (else its own)."""
    goes_on = jnp.append(trajectory[1:] == trajectory[:-1], False) & (trajectory >= 0)
    return goes_on, jnp.where(goes_on, jnp.append(key[1:], 0), key)


def _count(state, key, turns, success, valid) -> State:
    """Statistics after the batch: each trajectory counts once per state that it visited."""
    _, first = grouping.label((key, turns.trajectory), turns.exists)
    return {
        "visits": state["visits"].at[key].add(first.astype(jnp.int32)),
        "successes": state["successes"].at[key].add((first & success).astype(jnp.int32)),
        "trajectories": state["trajectories"] + jnp.sum(valid, dtype=jnp.int32),
    }
