"""The plain score function: golden numbers, what is stopped, its relation to the ratio's."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single.advantages import baselines
from jaxrl_single.objectives import sao, score

POLICY = jnp.log(jnp.array([0.4, 0.3, 0.5]))
ADVANTAGES = jnp.array([1.0, -0.5, 2.0])
ALL = jnp.ones(3, bool)


@jax.jit
@jax.grad
def exact_gradient(logits, reward):
    """Of the expected reward of one action."""
    return jnp.sum(jax.nn.softmax(logits) * reward)


@jax.jit
def total_loss(policy, advantages, keep, mask):
    per_token, weights, metrics = score.score(policy, advantages, keep, mask)
    return jnp.sum(per_token), (per_token, weights, metrics)


def test_golden_value_and_gradient():
    """-keep A log pi with keep 1, 0.5, 0: log 0.4 and -0.25 log 0.3; gradient -keep A."""
    keep = jnp.array([1.0, 0.5, 0.0])
    (_, (per_token, weights, metrics)), gradient = jax.value_and_grad(total_loss, has_aux=True)(
        POLICY, ADVANTAGES, keep, ALL
    )
    np.testing.assert_allclose(per_token, [0.916290732, -0.300993201, 0.0], rtol=1e-6)
    np.testing.assert_allclose(gradient, [-1.0, 0.25, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(weights, keep)
    assert metrics == {}


def test_only_the_log_probs_carry_a_gradient():
    gradients, _ = jax.grad(total_loss, argnums=(1, 2), has_aux=True)(
        POLICY, ADVANTAGES, jnp.ones(3), ALL
    )
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, np.zeros(3))


def test_equals_sao_where_the_policy_is_the_one_that_sampled():
    expected, _, _ = sao.sao(POLICY, POLICY, ADVANTAGES, jnp.ones(3), ALL)
    per_token, _, _ = score.score(POLICY, ADVANTAGES, jnp.ones(3), ALL)
    np.testing.assert_array_equal(per_token, expected)


def test_expected_gradient_is_that_of_the_expected_reward():
    """Enumerated over one action of a softmax of three logits, in which every outcome has its own
    probability as weight: the mean of -gradient is that of sum p R, with any constant baseline."""
    logits, reward = jnp.array([0.2, -0.4, 0.1]), jnp.array([1.0, -0.5, 0.3])
    exact = exact_gradient(logits, reward)

    def loss(z):
        advantages = reward - 0.7
        outcomes = jax.lax.stop_gradient(jax.nn.softmax(z))
        per_token, _, _ = score.score(jax.nn.log_softmax(z), advantages, jnp.ones(3), ALL)
        return jnp.sum(outcomes * per_token)

    np.testing.assert_allclose(-jax.jit(jax.grad(loss))(logits), exact, rtol=1e-5, atol=1e-7)


def test_a_batch_baseline_that_holds_the_reward_itself_scales_by_one_half_of_two():
    """Two trajectories of one action, all nine pairs enumerated: exactly (N - 1) / N = 1/2."""
    logits, reward = jnp.array([0.2, -0.4, 0.1]), jnp.array([1.0, -0.5, 0.3])
    exact = exact_gradient(logits, reward)
    first, second = (index.reshape(-1) for index in jnp.meshgrid(jnp.arange(3), jnp.arange(3)))
    pairs = jnp.stack([first, second], axis=1)

    def loss(z):
        logprobs = jax.nn.log_softmax(z)[pairs]
        chance = jnp.exp(jax.lax.stop_gradient(jnp.sum(logprobs, axis=1)))
        centred = jax.vmap(lambda r: baselines.batch_mean(r, jnp.ones(2, bool)))(reward[pairs])
        per_token, _, _ = score.score(logprobs, centred, jnp.ones((9, 2)), jnp.ones((9, 2), bool))
        return jnp.sum(chance * jnp.mean(per_token, axis=1))

    np.testing.assert_allclose(-jax.jit(jax.grad(loss))(logits), 0.5 * exact, rtol=1e-5, atol=1e-7)
