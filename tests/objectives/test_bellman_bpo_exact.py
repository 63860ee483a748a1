"""The exact Bellman objective: worked numbers, and descent to the closed form on a tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import bellman_bpo_exact

MU = np.array([0.5, 0.3, 0.2])
ADVANTAGES = np.array([1.0, -0.5, -1.75])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def each_action(theta):
    """One trajectory of one token for each of the three actions, weighted by mu."""
    log_pi, log_mu = jax.nn.log_softmax(theta), jnp.log(MU)

    def one(action):
        per_token, _, metrics = bellman_bpo_exact.bellman_bpo_exact(
            log_pi[None, action],
            log_mu[None, action],
            jnp.asarray(ADVANTAGES)[None, action],
            jnp.ones(1),
            jnp.ones(1, bool),
            jnp.zeros(1, jnp.int32),
            1,
            log_pi[None],
            log_mu[None],
            eta=0.7,
        )
        return per_token[0], metrics["policy/residual"][0]

    losses, delta = jax.vmap(one)(jnp.arange(3))
    return jnp.sum(MU * losses), delta


@pytest.fixture(scope="module")
def evaluate():
    return jax.jit(jax.value_and_grad(each_action, has_aux=True))


def test_golden(evaluate):
    (loss, delta), gradient = evaluate(np.log([0.4, 0.4, 0.2]))
    np.testing.assert_allclose(delta, [0.897876397, -0.662949226, -1.250267154], atol=1e-9)
    np.testing.assert_allclose(np.sum(MU * delta), 0.0, atol=1e-15)
    np.testing.assert_allclose(loss, 0.605410790541, atol=1e-12)
    np.testing.assert_allclose(gradient, [-0.641340284, 0.284121097, 0.357219187], atol=1e-9)


def test_loss_and_gradient_are_zero_at_the_closed_form(evaluate):
    tilted = MU * np.exp(0.7 * ADVANTAGES)
    optimum = tilted / tilted.sum()
    np.testing.assert_allclose(optimum, [0.788448938, 0.165544828, 0.046006234], atol=1e-9)
    divergence = np.sum(MU * np.log(MU / optimum))
    np.testing.assert_allclose([np.log(tilted.sum()), divergence], 0.24454045273901964, atol=1e-15)
    (_, delta), gradient = evaluate(np.log(optimum))
    np.testing.assert_allclose(delta, 0.0, atol=1e-15)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-15)


STATES = np.array([0, 0, 0, 1, 0, 1, 0, 1])
ACTIONS = np.array([0, 1, 2, 0, 2, 1, 2, 2])
INDEX = np.array([0, 1, 2, 2, 3, 3, 4, 4], np.int32)
SAMPLER = np.array([[0.3, 0.25, 0.45], [0.6, 0.3, 0.1]])
REWARDS = np.array([0.2, -0.1, 1.1, -0.5, 0.3])
ACTION_VALUES = np.array([[0.2, -0.1, 0.54], [1.1, -0.5, 0.3]])
PATHS = np.array([0.3, 0.25, 0.27, 0.135, 0.045])


def tree_loss(theta):
    """The mean over the five paths of the tree of `test_klpo_enumeration`, packed in one row."""
    rows = [x[STATES] for x in (jax.nn.log_softmax(theta), jnp.log(SAMPLER))]
    token = [row[np.arange(8), ACTIONS] for row in rows]
    per_token, _, _ = bellman_bpo_exact.bellman_bpo_exact(
        *token,
        jnp.asarray(REWARDS - 0.278)[INDEX],
        jnp.ones(8),
        jnp.ones(8, bool),
        INDEX,
        5,
        *rows,
        eta=2.5,
    )
    return jnp.sum(per_token * PATHS[INDEX])


def test_descent_on_a_tree_ends_at_the_closed_form_in_every_state():
    """One equation per path is enough for the equations of all states."""

    @jax.jit
    def descend(theta):
        step = jax.grad(tree_loss)
        return jax.lax.fori_loop(0, 4000, lambda _, x: x - 2.0 * step(x), theta)

    theta = descend(np.log(SAMPLER))
    tilted = SAMPLER * np.exp(2.5 * ACTION_VALUES)
    expected = tilted / tilted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(jax.nn.softmax(theta), expected, atol=1e-9)
    assert jax.jit(tree_loss)(theta) < 1e-15
