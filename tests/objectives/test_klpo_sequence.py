"""KLPO's sequence route: worked numbers, draws left out one by one, dropped tokens."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import klpo_sequence

LOGITS = np.array([[0.2, -0.1, 0.4], [-0.3, 0.5, 0.1]])
SAMPLER = np.log(np.array([[0.3, 0.3, 0.4], [0.2, 0.5, 0.3]]))
AT, ACTIONS, DRAWS = np.arange(2), np.array([2, 1]), np.array([[0, 2], [1, 1]])
WHERE = (np.ones(2, bool), np.zeros(2, np.int32), 1)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def monte_carlo(theta, draws, keep):
    log_p = jax.nn.log_softmax(theta)
    rows = [jnp.take_along_axis(x, draws, axis=1) for x in (log_p, jnp.asarray(SAMPLER))]
    token = (log_p[AT, ACTIONS], SAMPLER[AT, ACTIONS], np.ones(2), keep)
    per_token, weights, metrics = klpo_sequence.sequence_mc(*token, *WHERE, *rows, beta=0.1)
    return jnp.sum(per_token), (per_token, weights, metrics)


evaluate = jax.jit(jax.value_and_grad(monte_carlo, has_aux=True))


def test_golden_monte_carlo():
    """D = 1.0088 and 1, scores .2 and 0: each score meets the other draw's residual."""
    (loss, (per_token, weights, metrics)), gradient = evaluate(LOGITS, DRAWS, np.ones(2))
    np.testing.assert_allclose(loss, -0.1, atol=1e-12)
    np.testing.assert_allclose(per_token, [-0.1, 0.0], atol=1e-12)
    np.testing.assert_allclose(gradient, [[0.5, 0, -0.5], [0, 0, 0]], atol=1e-12)
    np.testing.assert_array_equal(weights, [1.0, 1.0])
    np.testing.assert_allclose(metrics["policy/residual"][0], (1.008768207 + 1) / 2, atol=1e-9)
    np.testing.assert_allclose(metrics["policy/regression_loss"][0], 5.04384103623, atol=1e-11)
    np.testing.assert_allclose(metrics["policy/sequence_kl"][0], -0.016089117, atol=1e-9)


def test_the_loss_of_the_draws_has_the_gradient_of_the_metric():
    """The mean of D_j D_l / (2 beta) over j != l, written out for three draws."""
    draws = np.array([[0, 2, 1], [1, 0, 1]])

    def pairs(theta):
        log_p = jax.nn.log_softmax(theta)
        ell = log_p - SAMPLER
        centred = ell[AT, ACTIONS][:, None] - ell[AT[:, None], draws]
        residuals = 1.0 - 0.1 * jnp.sum(centred, axis=0)
        pairs = itertools.permutations(range(3), 2)
        return sum(residuals[j] * residuals[k] for j, k in pairs) / 6 / 0.2

    value, expected = jax.jit(jax.value_and_grad(pairs))(LOGITS)
    (_, (_, _, metrics)), gradient = evaluate(LOGITS, draws, np.ones(2))
    np.testing.assert_allclose(gradient, expected, atol=1e-12)
    np.testing.assert_allclose(metrics["policy/regression_loss"][0], value, atol=1e-12)


@pytest.mark.parametrize("num_draws", [0, 1])
def test_fewer_than_two_draws_are_refused(num_draws):
    with pytest.raises(ValueError, match=f"at least 2 .* got {num_draws}"):
        monte_carlo(LOGITS, DRAWS[:, :num_draws], np.ones(2))


def residual_loss(theta, name, *, reward=0.7, beta=0.3):
    """D^2 / (2 beta) of the two tokens, with the KL of each kernel written out and live."""
    log_p = jax.nn.log_softmax(theta)
    ell, q = (log_p - SAMPLER), np.exp(SAMPLER)
    a = ell[AT, ACTIONS]
    if name == "full":
        kl = -jnp.sum(q * ell, axis=1)
    elif name == "topk":
        tails = [1 - jnp.sum(jnp.exp(x)[:, :1], axis=1) for x in (SAMPLER, log_p)]
        kl = -q[:, 0] * ell[:, 0] + tails[0] * jnp.log(tails[0] / tails[1])
    else:
        qa, pa = q[AT, ACTIONS], jnp.exp(log_p[AT, ACTIONS])
        kl = -qa * a + (1 - qa) * jnp.log((1 - qa) / (1 - pa))
    return (reward - beta * jnp.sum(a + kl)) ** 2 / (2 * beta)


@pytest.mark.parametrize("name", ["full", "topk", "binary"])
def test_gradient_is_that_of_the_square_of_the_residual(name):
    def loss(theta):
        log_p = jax.nn.log_softmax(theta)
        token = (log_p[AT, ACTIONS], SAMPLER[AT, ACTIONS], np.full(2, 0.7), np.ones(2))
        if name == "full":
            output = klpo_sequence.sequence_full(*token, *WHERE, log_p, SAMPLER, beta=0.3)
        elif name == "topk":
            rows = log_p[:, :1], SAMPLER[:, :1]
            output = klpo_sequence.sequence_topk(*token, *WHERE, *rows, beta=0.3, tail_floor=1e-6)
        else:
            output = klpo_sequence.sequence_binary(*token, *WHERE, beta=0.3)
        return jnp.sum(output[0]), output[2]

    value, expected = jax.jit(jax.value_and_grad(residual_loss), static_argnums=1)(LOGITS, name)
    gradient, metrics = jax.jit(jax.grad(loss, has_aux=True))(LOGITS)
    np.testing.assert_allclose(gradient, expected, atol=1e-12)
    np.testing.assert_allclose(metrics["policy/regression_loss"][0], value, atol=1e-12)


def test_all_tokens_dropped_leave_the_reward_as_residual_and_no_gradient():
    (_, (_, _, metrics)), gradient = evaluate(LOGITS, DRAWS, np.zeros(2))
    np.testing.assert_array_equal(gradient, np.zeros((2, 3)))
    np.testing.assert_allclose(metrics["policy/residual"][0], 1.0)
