"""SAO's estimator: two lambdas, lengths in action tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single.advantages import critic_gae, skip_obs_gae

# a a o o a of trajectory 0, padding, then a of trajectory 1.
REWARDS = np.array([0, 0, 0, 0, 1, 0, 2], np.float32)
VALUES = np.array([0.5, 0.6, -3, 7, 0.8, np.nan, 0.5], np.float32)
MASK = np.array([1, 1, 0, 0, 1, 0, 1], bool)
INDEX = np.array([0, 0, 0, 0, 0, -1, 1], np.int32)


@jax.jit
def estimate(values, critic_lambda):
    return critic_gae.critic_gae(
        REWARDS,
        values,
        MASK,
        INDEX,
        jnp.zeros(2),
        discount=1.0,
        lambda_alpha=1.5,
        critic_lambda=critic_lambda,
    )


def test_golden_with_lambda_of_three_action_tokens():
    """l = 3 actions gives 7 / 9; counting the five tokens would give 13 / 15."""
    advantages, returns = estimate(VALUES, 1.0)
    expected = [0.37654321, 0.35555556, 0, 0, 0.2, 0, 1.5]
    np.testing.assert_allclose(advantages, expected, atol=1e-6)
    np.testing.assert_allclose(returns, [1, 1, 0, 0, 1, 0, 2], atol=1e-6)


def test_critic_lambda_moves_the_targets_alone():
    advantages, returns = estimate(VALUES, 0.5)
    np.testing.assert_array_equal(advantages, estimate(VALUES, 1.0)[0])
    arrays = (REWARDS, VALUES, MASK, INDEX, jnp.zeros(2))
    _, expected = skip_obs_gae.skip_obs_gae(*arrays, discount=1.0, lambda_=0.5)
    np.testing.assert_allclose(returns, expected, atol=1e-6)
    assert not np.allclose(returns, estimate(VALUES, 1.0)[1])
