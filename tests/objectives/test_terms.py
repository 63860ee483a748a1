"""Auxiliary losses: worked numbers, masks, what their gradients mean, extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import terms

LOGPROBS = jnp.array([-0.5, -1.0, -2.0, -0.1, -9.0])
INDEX = jnp.array([0, 0, 1, 2, -1])
MASK = jnp.array([True, False, True, True, False])


@pytest.mark.parametrize(
    ("reward", "counted"),
    [
        ([1.0, 0.0, -1.0], [True, False, False, False, False]),
        ([0.0, 0.3, 2.0], [False, False, True, True, False]),
        ([0.0, -1.0, np.nan], [False] * 5),
    ],
)
def test_positive_nll(reward, counted):
    def total(logprobs):
        per_token, mask = terms.positive_nll(logprobs, jnp.array(reward), INDEX, MASK)
        return jnp.sum(per_token), (per_token, mask)

    gradient, (per_token, mask) = jax.grad(total, has_aux=True)(LOGPROBS)
    np.testing.assert_array_equal(mask, counted)
    np.testing.assert_array_equal(per_token, np.where(counted, -LOGPROBS, 0.0))
    np.testing.assert_array_equal(gradient, -np.array(counted, np.float32))


def test_reference_kl_golden():
    """pi 0.5 and ref 0.25, 1.0: x = ref / pi is 1/2, 2; x - 1 - log x; gradient 1 - x."""
    policy, ref = jnp.log(jnp.array([0.5, 0.5, 0.5])), jnp.log(jnp.array([0.25, 1.0, 0.5]))

    def total(policy, ref):
        per_token, _ = terms.reference_kl(policy, ref, jnp.ones(3, bool))
        return jnp.sum(per_token), per_token

    gradients, per_token = jax.grad(total, argnums=(0, 1), has_aux=True)(policy, ref)
    np.testing.assert_allclose(per_token, [0.193147181, 0.306852819, 0.0], rtol=2e-6)
    np.testing.assert_allclose(gradients[0], [0.5, -1.0, 0.0], rtol=2e-6)
    np.testing.assert_array_equal(gradients[1], np.zeros(3))


def test_reference_kl_estimates_one_divergence_and_descends_another():
    """Enumerated over a softmax of three logits."""
    logits, ref = jnp.array([0.2, -0.4, 0.1]), jax.nn.log_softmax(jnp.array([-0.3, 0.5, 0.2]))
    probabilities = jax.nn.softmax(logits)

    def expected(z):
        per_token, _ = terms.reference_kl(jax.nn.log_softmax(z), ref, jnp.ones(3, bool))
        return jnp.sum(probabilities * per_token)

    def kl(p, q):
        return jnp.sum(jnp.exp(p) * (p - q))

    value, gradient = jax.value_and_grad(expected)(logits)
    policy = jax.nn.log_softmax(logits)
    np.testing.assert_allclose(value, kl(policy, ref), rtol=1e-5)
    other_way = jax.grad(lambda z: kl(ref, jax.nn.log_softmax(z)))(logits)
    np.testing.assert_allclose(gradient, other_way, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "sign"), [(-1e-3, 1.0), (-30.0, -1.0), (-80.0, 0.0), (-500.0, 0.0)]
)
def test_reference_kl_never_pushes_the_wrong_way(policy, sign):
    """Likelier than under the reference: down. Less likely: up, or nothing beyond the limit."""

    def total(policy):
        return jnp.sum(terms.reference_kl(policy, jnp.array([-5.0]), jnp.ones(1, bool))[0])

    value, gradient = jax.value_and_grad(total)(jnp.array([policy]))
    assert np.isfinite(value)
    assert value > 0
    assert np.sign(gradient) == sign


def test_entropy_bonus():
    def total(entropies):
        per_token, mask = terms.entropy_bonus(entropies, MASK)
        return jnp.sum(per_token), (per_token, mask)

    gradient, (per_token, mask) = jax.grad(total, has_aux=True)(-LOGPROBS)
    np.testing.assert_allclose(per_token, [-0.5, 0.0, -2.0, -0.1, 0.0])
    np.testing.assert_array_equal(gradient, -MASK.astype(jnp.float32))
    np.testing.assert_array_equal(mask, MASK)
