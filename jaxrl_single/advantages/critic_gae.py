"""Skip-observation GAE with one lambda for the policy and another for the critic's targets."""

import jax

from jaxrl_single.advantages import length_lambda, skip_obs_gae
from jaxrl_single.ops import segments


def critic_gae(
    rewards: jax.Array,
    values: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    bootstrap_values: jax.Array,
    *,
    discount: float,
    lambda_alpha: float,
    critic_lambda: float,
) -> tuple[jax.Array, jax.Array]:
    """Advantages with the length-adaptive lambda, and the targets of the critic.

    See "SAO" (arXiv 2607.07508), §3.2: lambda = 1 - 1 / (lambda_alpha l) for the policy, l the
    action tokens of the trajectory, and critic_lambda = 1 (the realised return) for the critic.

    Args:
      rewards, values, action_mask, trajectory_index, bootstrap_values, discount: as for
        `skip_obs_gae.skip_obs_gae`.
      lambda_alpha: > 0, see `length_lambda`.
      critic_lambda: in [0, 1].

    Returns:
      advantages, returns: [T] float32, stop-gradient, 0 where action_mask is False.
    """
    lengths = segments.lengths(action_mask, trajectory_index, bootstrap_values.shape[0])
    per_trajectory = length_lambda.length_adaptive_lambda(lengths, alpha=lambda_alpha)
    return fixed_gae(
        rewards,
        values,
        action_mask,
        trajectory_index,
        bootstrap_values,
        discount=discount,
        lambda_=segments.spread(per_trajectory, trajectory_index),
        critic_lambda=critic_lambda,
    )


def fixed_gae(
    rewards: jax.Array,
    values: jax.Array,
    action_mask: jax.Array,
    trajectory_index: jax.Array,
    bootstrap_values: jax.Array,
    *,
    discount: float,
    lambda_: jax.Array | float,
    critic_lambda: float,
) -> tuple[jax.Array, jax.Array]:
    """The same with a given lambda for the policy, as in PPO (arXiv 1707.06347).

    Args:
      rewards, values, action_mask, trajectory_index, bootstrap_values, discount: as for
        `skip_obs_gae.skip_obs_gae`.
      lambda_: scalar or [T], in [0, 1].
      critic_lambda: in [0, 1].

    Returns:
      advantages, returns: [T], stop-gradient, 0 where action_mask is False.
    """
    arrays = (rewards, values, action_mask, trajectory_index, bootstrap_values)
    advantages, _ = skip_obs_gae.skip_obs_gae(*arrays, discount=discount, lambda_=lambda_)
    _, returns = skip_obs_gae.skip_obs_gae(*arrays, discount=discount, lambda_=critic_lambda)
    return advantages, returns
