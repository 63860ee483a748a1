"""GAE over turns: one action is a whole turn, and its tokens share one advantage.

The recursion of `gae` runs over the turns of a trajectory; the discount and lambda count turns. The
three functions differ in the value of a turn. All tokens of a turn get the same target for the
critic, the lambda-return of the turn.
"""

import jax

from jaxrl_single.advantages import critic_gae, length_lambda
from jaxrl_single.advantages import turns as turns_lib
from jaxrl_single.ops import segments


def step_average(
    rewards: jax.Array,
    values: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    turn_ids: jax.Array,
    bootstrap_values: jax.Array,
    *,
    discount: float,
    lambda_alpha: float,
    critic_lambda: float,
) -> tuple[jax.Array, jax.Array]:
    """Value of a turn: mean of the values at its action tokens.

    See "SAO" (arXiv 2607.07508), appendix A.1, the step-level variant "average".

    Args:
      rewards: per token, on action tokens; a turn's reward is their sum.
      values: per token, of the prefix before it.
      action_mask: bool per token. Where False, rewards, values and turn_ids may hold anything.
      trajectory_index: i32 per token, 0..N-1 and -1 on padding; trajectories are contiguous.
      turn_ids: i32 per token, in order within a trajectory.
      bootstrap_values: [N], the value after the last token; 0 for a terminated trajectory.
      discount: in [0, 1], per turn.
      lambda_alpha: > 0; lambda = 1 - 1 / (lambda_alpha l), l the action TOKENS of the trajectory.
      critic_lambda: in [0, 1], for the returns.

    Returns:
      advantages, returns: per token, at least float32, stop-gradient, 0 where action_mask is False.
    """
    turns = turns_lib.find(action_mask, trajectory_index, turn_ids)
    return _over_turns(
        turns,
        turns_lib.means(values, turns),
        rewards,
        trajectory_index,
        bootstrap_values,
        discount=discount,
        lambda_alpha=lambda_alpha,
        critic_lambda=critic_lambda,
    )


def step_last(
    rewards: jax.Array,
    values: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    turn_ids: jax.Array,
    bootstrap_values: jax.Array,
    *,
    discount: float,
    lambda_alpha: float,
    critic_lambda: float,
) -> tuple[jax.Array, jax.Array]:
    """Value of a turn: the value at its last action token. Arguments as for `step_average`.

    See "SAO" (arXiv 2607.07508), appendix A.1, the step-level variant "last token". This value has
    seen all of the turn but its last token, so it is no baseline for the turn's earlier tokens.
    """
    turns = turns_lib.find(action_mask, trajectory_index, turn_ids)
    return _over_turns(
        turns,
        values.reshape(-1)[turns.last],
        rewards,
        trajectory_index,
        bootstrap_values,
        discount=discount,
        lambda_alpha=lambda_alpha,
        critic_lambda=critic_lambda,
    )


def turn_level(
    rewards: jax.Array,
    values: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    turn_ids: jax.Array,
    bootstrap_values: jax.Array,
    *,
    discount: float,
    lambda_alpha: float,
    critic_lambda: float,
) -> tuple[jax.Array, jax.Array]:
    """Value of a turn: the value before its first action token. Arguments as for `step_average`.

    See "RLEF" (arXiv 2410.02089): one value per turn, of what the policy has read when the turn
    begins, and one advantage for all tokens of the turn.
    """
    turns = turns_lib.find(action_mask, trajectory_index, turn_ids)
    return _over_turns(
        turns,
        values.reshape(-1)[turns.first],
        rewards,
        trajectory_index,
        bootstrap_values,
        discount=discount,
        lambda_alpha=lambda_alpha,
        critic_lambda=critic_lambda,
    )


def _over_turns(
    turns: turns_lib.Turns,
    turn_values: jax.Array,
    rewards: jax.Array,
    trajectory_index: jax.Array,
    bootstrap_values: jax.Array,
    *,
    discount: float,
    lambda_alpha: float,
    critic_lambda: float,
) -> tuple[jax.Array, jax.Array]:
    """Takes a turn for one token of a stream without observations, and spreads the results."""
    lengths = segments.lengths(turns.counted, trajectory_index, bootstrap_values.shape[0])
    per_trajectory = length_lambda.length_adaptive_lambda(lengths, alpha=lambda_alpha)
    policy_lambda = segments.spread(per_trajectory, turns.trajectory)
    turn_rewards = turns_lib.sums(rewards, turns)
    advantages, returns = critic_gae.fixed_gae(
        turn_rewards,
        turn_values,
        turns.exists,
        turns.trajectory,
        bootstrap_values,
        discount=discount,
        lambda_=policy_lambda,
        critic_lambda=critic_lambda,
    )
    return turns_lib.spread(advantages, turns), turns_lib.spread(returns, turns)
