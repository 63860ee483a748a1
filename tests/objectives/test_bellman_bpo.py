"""Practical Bellman BPO: worked weights, a row with its mask, where the weight comes from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.keep_rules import omega_mask
from jaxrl_single.objectives import bellman_bpo

MU = np.array([0.5, 0.9, 0.3, 0.97])
PI = np.array([0.9, 0.5, 0.32, 0.05])


@jax.jit
def mean_loss(policy, rollout, advantages, keep):
    per_token, weights, metrics = bellman_bpo.bellman_bpo(
        policy, rollout, advantages, keep, jnp.ones(policy.shape, bool), eps=0.1, cap=3.0
    )
    return jnp.mean(per_token), (weights, metrics)


@pytest.mark.parametrize(
    ("mu", "pi", "omega"),
    [
        (0.001, 0.01, 1.00825688073),
        (0.5, 0.9, 3.0),
        (0.9, 0.5, 0.333333333333),
        (0.1, 1.0, 3.0),  # 10 before the cap
        (0.0, 1.0, 3.0),  # 11 before the cap
        (0.37, 0.37, 1.0),
    ],
)
def test_golden_weights(mu, pi, omega):
    with np.errstate(divide="ignore"):
        policy, rollout = jnp.log(jnp.array([pi])), jnp.asarray(np.log([mu]), jnp.float32)
    _, (weights, _) = mean_loss(policy, rollout, jnp.ones(1), jnp.ones(1))
    np.testing.assert_allclose(weights, [omega], rtol=2e-6)


@pytest.mark.parametrize(
    ("advantage", "keep", "gradient", "loss"),
    [
        (1.0, [0, 1, 1, 1], [0.0, -0.083333333, -0.256410256, -0.030952381], 0.442649948324),
        (-1.0, [1, 0, 1, 0], [0.75, 0.0, 0.256410256, 0.0], -0.371183023458),
    ],
)
def test_golden_row(advantage, keep, gradient, loss):
    """Weights 3, 1/3, 1.0256 and 0.1238, of which the mask drops one or two; mean over 4 tokens."""
    policy, rollout = jnp.log(jnp.asarray(PI)), jnp.log(jnp.asarray(MU))
    advantages, mask = jnp.full(4, advantage), jnp.ones(4, bool)
    kept = omega_mask.omega_mask(policy, rollout, advantages, mask, eps=0.1, low=0.2, high=0.28)
    np.testing.assert_array_equal(kept, keep)
    (got, (weights, _)), got_gradient = jax.value_and_grad(mean_loss, has_aux=True)(
        policy, rollout, advantages, kept
    )
    np.testing.assert_allclose(got, loss, rtol=1e-5)
    np.testing.assert_allclose(got_gradient, gradient, rtol=1e-5)
    np.testing.assert_allclose(-weights * advantage / 4, got_gradient, rtol=1e-6)


def test_metrics_count_the_cap_on_kept_tokens_only():
    policy, rollout = jnp.log(jnp.array([0.9, 0.95, 0.5])), jnp.log(jnp.array([0.1, 0.1, 0.5]))
    _, (_, metrics) = mean_loss(policy, rollout, jnp.ones(3), jnp.array([1.0, 0.0, 1.0]))
    assert metrics["policy/clip_fraction"] == (1, 3)
    total, weight = metrics["policy/omega_mean"]
    np.testing.assert_allclose(total, 1.0 / 0.2 + 1.0 / 0.15 + 1.0, rtol=1e-5)
    assert weight == 3


def test_without_smoothing_is_the_gradient_of_log_pi_plus_a_two_event_kl():
    """Central differences in float64 of log pi + kl(mu, pi), as a function of log pi."""

    def by_hand(logpi):
        pi = np.exp(logpi)
        return logpi + MU * np.log(MU / pi) + (1 - MU) * np.log((1 - MU) / (1 - pi))

    step = 1e-6
    slope = (by_hand(np.log(PI) + step) - by_hand(np.log(PI) - step)) / (2 * step)
    with jax.enable_x64(True):
        _, weights, _ = bellman_bpo.bellman_bpo(
            jnp.log(PI), jnp.log(MU), jnp.ones(4), jnp.ones(4), jnp.ones(4, bool), eps=0.0, cap=1e9
        )
    np.testing.assert_allclose(weights, slope, rtol=1e-8)
