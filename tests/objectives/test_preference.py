"""REBEL, SPPO and GPO: worked numbers and how they are special cases of one regression."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import bellman_bpo_exact, preference

Q = np.array([0.5, 0.3, 0.2])
PI = np.array([0.4, 0.4, 0.2])
REWARD = np.array([1.0, 0.2, -0.5])
ELL = np.log(PI / Q)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@functools.partial(jax.jit, static_argnames=("function", "eta", "beta"))
def one_token_each(function, ell, *arrays, **settings):
    """Trajectories of one token with the given log-ratios."""
    size = len(ell)
    token = (ell, jnp.zeros(size), jnp.ones(size), jnp.ones(size, bool))
    return function(*token, jnp.arange(size), size, *arrays, **settings)[0]


def pair_losses(ell):
    """REBEL's loss of all nine pairs of responses, each a group of two."""
    first, second = np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3)
    members, group = np.concatenate([first, second]), np.tile(np.arange(9), 2)
    losses = one_token_each(preference.rebel, ell[members], REWARD[members], group, eta=2.0)
    return losses.reshape(2, 9), Q[first] * Q[second]


def test_rebel_is_twice_the_variance_of_the_residual():
    losses, weights = pair_losses(ELL)
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-15)
    np.testing.assert_allclose(np.sum(weights * losses[0]), 0.890719113823, atol=1e-12)
    residual = REWARD - ELL / 2.0
    variance = np.sum(Q * residual**2) - np.sum(Q * residual) ** 2
    np.testing.assert_allclose(variance, 0.445359556912, atol=1e-12)
    kl = -np.sum(Q * ELL)
    np.testing.assert_allclose(np.sum(Q * residual) - kl / 2.0, 0.46, atol=1e-12)


def test_rebel_has_the_gradient_of_twice_the_variance():
    def pairs(theta):
        losses, weights = pair_losses(jax.nn.log_softmax(theta) - jnp.log(Q))
        return jnp.sum(weights * jnp.mean(losses, axis=0))

    def variance(theta):
        residual = REWARD - (jax.nn.log_softmax(theta) - jnp.log(Q)) / 2.0
        return 2 * (jnp.sum(Q * residual**2) - jnp.sum(Q * residual) ** 2)

    theta = np.log(PI)
    np.testing.assert_allclose(
        jax.jit(jax.grad(pairs))(theta), jax.jit(jax.grad(variance))(theta), atol=1e-12
    )


def test_rebel_is_the_mean_over_the_others_of_the_group():
    ell, reward = np.array([0.3, -0.2, 0.5, 9.0, 0.1]), np.array([1.0, 0.0, 0.5, 7.0, 0.2])
    group = np.array([4, 4, 7, 1, 4], np.int32)
    gap = ell / 0.5 - reward
    others = {0: (1, 4), 1: (0, 4), 4: (0, 1)}
    expected = np.zeros(5)
    for i, js in others.items():
        expected[i] = np.mean([(gap[i] - gap[j]) ** 2 for j in js])
    losses = one_token_each(preference.rebel, ell, reward, group, eta=0.5)
    np.testing.assert_allclose(losses, expected, atol=1e-14)


def test_golden_sppo_and_gpo():
    sppo = one_token_each(preference.sppo, np.array([-0.2]), np.array([0.8]), eta=2.0)
    gpo = one_token_each(preference.gpo, np.array([-0.2]), np.array([1.3]), beta=2.0)
    np.testing.assert_allclose([sppo[0], gpo[0]], [0.64, 0.7225], atol=1e-15)


def test_sppo_is_gpo_of_the_centred_probability():
    probability = np.array([0.9, 0.1, 0.4])
    sppo = one_token_each(preference.sppo, ELL, probability, eta=2.5)
    gpo = one_token_each(preference.gpo, ELL, probability - 0.5, beta=0.4)
    np.testing.assert_allclose(sppo, gpo, atol=1e-14)


def test_gpo_exceeds_the_bellman_loss_by_the_square_of_the_dropped_divergence():
    """E_q (eta A - ell)^2 = E_q delta^2 + KL^2, because delta = eta A - ell - KL has mean 0."""
    advantages, eta = REWARD - np.sum(Q * REWARD), 2.0
    gpo = one_token_each(preference.gpo, ELL, advantages, beta=1 / eta)
    rows = [np.broadcast_to(np.log(x), (3, 3)) for x in (PI, Q)]
    token = (ELL, np.zeros(3), advantages, np.ones(3), np.ones(3, bool), np.arange(3))
    exact = functools.partial(bellman_bpo_exact.bellman_bpo_exact, eta=eta)
    bellman = jax.jit(exact, static_argnums=6)(*token, 3, *rows)[0]
    kl = -np.sum(Q * ELL)
    np.testing.assert_allclose(np.sum(Q * gpo), 2 * eta * np.sum(Q * bellman) + kl**2, atol=1e-14)


def test_the_loss_of_a_response_is_shared_by_its_tokens():
    """Three tokens with log-ratios .1, -.4, .2 of which the second is dropped."""
    ell, keep = np.array([0.1, -0.4, 0.2]), np.array([1.0, 0.0, 1.0])
    index, mask = np.zeros(3, np.int32), np.ones(3, bool)

    def loss(ell):
        token = (ell, jnp.zeros(3), keep, mask)
        per_token, weights, metrics = preference.sppo(*token, index, 1, jnp.array([1.0]), eta=1.0)
        return jnp.sum(per_token), (per_token, weights, metrics)

    gradient, (per_token, weights, metrics) = jax.jit(jax.grad(loss, has_aux=True))(ell)
    np.testing.assert_allclose(per_token, np.full(3, 0.04 / 3), atol=1e-15)
    np.testing.assert_allclose(gradient, [-0.4, 0.0, -0.4], atol=1e-15)
    np.testing.assert_array_equal(weights, keep)
    np.testing.assert_allclose(metrics["policy/regression_loss"], (0.04, 1), atol=1e-15)
