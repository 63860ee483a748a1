"""SPO's tracker: worked numbers, drift, order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.advantages import spo

INDEX = np.array([0, 0, 0, 1, 1, 2, -1, -1], np.int32)
MASK = np.array([1, 0, 1, 1, 1, 1, 0, 1], bool)


@jax.jit
def function(state, reward, task, valid, log_ratio):
    arrays = (reward, task, valid, log_ratio, MASK, INDEX)
    return spo.spo(state, *arrays, half_life=0.06, rho_min=0.875, rho_max=0.96)


def drifts(first, second, third):
    """Log-ratios with these mean magnitudes over the action tokens, both signs, garbage else."""
    return np.float32([first / 2, np.nan, -1.5 * first, second, -second, third, np.inf, 9.0])


def test_golden_three_visits():
    """8 offline samples with 2 successes; then the drift seen by each visit is 0, .03, .12."""
    state = spo.from_offline(jnp.array([2.0]), jnp.array([8.0]), rho_min=0.875)
    np.testing.assert_allclose(state["alpha"], 2.22222222222, rtol=1e-6)
    np.testing.assert_allclose(state["beta"], 5.77777777778, rtol=1e-6)
    rewards, task, valid = np.float32([1, 0, 1]), np.zeros(3, int), np.ones(3, bool)
    advantages, after = function(state, rewards, task, valid, drifts(0.03, 0.12, 0.5))
    np.testing.assert_allclose(advantages, [0.722222222, -0.360983103, 0.681016095], rtol=1e-6)
    value = after["alpha"] / (after["alpha"] + after["beta"])
    np.testing.assert_allclose(value, 0.39890950879, rtol=1e-6)
    np.testing.assert_allclose(after["drift"], 0.5, rtol=1e-6)
    expected = [(3.13333333333, 5.54666666667), (2.74166666667, 5.85333333333)]
    for alpha_beta in expected:
        only = valid & (np.arange(3) == 0)
        reward = rewards if alpha_beta is expected[0] else np.zeros(3, np.float32)
        _, state = function(state, reward, task, only, drifts(0.03, 0, 0))
        np.testing.assert_allclose((state["alpha"][0], state["beta"][0]), alpha_beta, rtol=1e-6)


def test_start_without_offline_samples_is_undecided():
    state = spo.spo_init(3, prior=0.5)
    for name in ("alpha", "beta"):
        np.testing.assert_allclose(state[name], 0.5)
    np.testing.assert_array_equal(state["drift"], 0.0)


def test_task_weights_golden():
    state = spo.from_offline(jnp.array([2.0, 4.0]), jnp.array([8.0, 8.0]), rho_min=0.875)
    got = spo.task_weights(state, floor=0.05)
    np.testing.assert_allclose(got, [0.497903208239, 0.55], rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_equals_loop_over_batches(seed):
    rng = np.random.default_rng(seed)
    state = spo.spo_init(2, prior=4.0)
    alpha, beta, drift = np.full(2, 4.0), np.full(2, 4.0), np.zeros(2)
    for _ in range(4):
        rewards, task = np.float32(rng.random(3)), rng.integers(0, 2, 3)
        valid = rng.random(3) < 0.8
        moved = rng.random(3) * 0.02
        expected = np.zeros(3)
        for i in np.flatnonzero(valid):
            k, r = task[i], float(rewards[i])
            expected[i] = r - alpha[k] / (alpha[k] + beta[k])
            rho = np.clip(2 ** (-drift[k] / 0.06), 0.875, 0.96)
            alpha[k], beta[k], drift[k] = rho * alpha[k] + r, rho * beta[k] + 1 - r, moved[i]
        reward = np.where(valid, rewards, np.nan).astype(np.float32)
        advantages, state = function(state, reward, task, valid, drifts(*moved))
        np.testing.assert_allclose(advantages, expected, atol=1e-6)
    np.testing.assert_allclose(state["alpha"], alpha, rtol=1e-5)
    np.testing.assert_allclose(state["drift"], drift, rtol=1e-5)


def test_huge_drift_forgets_at_the_floor():
    state = {"alpha": jnp.ones(1), "beta": jnp.ones(1), "drift": jnp.full(1, 1e30)}
    only = np.array([True, False, False])
    _, after = function(state, np.zeros(3, np.float32), np.zeros(3, int), only, drifts(0, 0, 0))
    np.testing.assert_allclose((after["alpha"][0], after["beta"][0]), (0.875, 1.875))
