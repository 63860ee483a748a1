"""SAO's estimator: skip-observation GAE with one lambda for the policy and one for the critic."""

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
    arrays = (rewards, values, action_mask, trajectory_index, bootstrap_values)
    lengths = segments.lengths(action_mask, trajectory_index, bootstrap_values.shape[0])
    per_trajectory = length_lambda.length_adaptive_lambda(lengths, alpha=lambda_alpha)
    policy_lambda = segments.spread(per_trajectory, trajectory_index)
    advantages, _ = skip_obs_gae.skip_obs_gae(*arrays, discount=discount, lambda_=policy_lambda)
    _, returns = skip_obs_gae.skip_obs_gae(*arrays, discount=discount, lambda_=critic_lambda)
    return advantages, returns
