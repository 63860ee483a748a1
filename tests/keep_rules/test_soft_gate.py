"""SAPO's gate: worked weights, the derivative that it stands for, extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.keep_rules import soft_gate

RATIO = np.array([0.7, 1.1, 1.5])
rule = jax.jit(soft_gate.soft_gate, static_argnames=("tau_positive", "tau_negative"))
TAUS = {"tau_positive": 1.0, "tau_negative": 1.05}


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (2.0, [0.684483273, 1.097254577, 1.410022273]),
        (-0.5, [0.682918803, 1.096973687, 1.401209735]),
    ],
)
def test_golden(advantage, expected):
    with jax.enable_x64(True):
        advantages = np.full(3, advantage)
        keep = rule(np.log(RATIO), advantages, np.ones(3, bool), **TAUS)
        np.testing.assert_allclose(keep * RATIO, expected, rtol=1e-8)


def test_times_the_ratio_it_is_the_derivative_of_the_surrogate():
    @jax.jit
    @jax.grad
    def derivative(log_ratio):
        return jnp.sum(4.0 / 1.05 * jax.nn.sigmoid(1.05 * (jnp.exp(log_ratio) - 1.0)))

    log_ratio = np.float32([-2.0, -0.1, 0.0, 0.5, 1.5])
    keep = rule(log_ratio, -np.ones(5, np.float32), np.ones(5, bool), **TAUS)
    np.testing.assert_allclose(keep * np.exp(log_ratio), derivative(log_ratio), rtol=2e-6)


def test_extremes():
    """At ratio 0 4 s(-tau) s(tau), at very large ones 0; no NaN on the way."""
    log_ratio = np.float32([-1e4, 0.0, 5.0, 1e4])
    keep = rule(log_ratio, np.ones(4, np.float32), np.ones(4, bool), **TAUS)
    np.testing.assert_allclose(keep, [0.786447733, 1.0, 0.0, 0.0], atol=1e-7)
