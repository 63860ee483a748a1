"""DPPO: the fixture, one-sidedness, the top-K forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.keep_rules import dppo
from tests.keep_rules import fixture

dppo_tv, dppo_kl = jax.jit(dppo.dppo_tv), jax.jit(dppo.dppo_kl)
dppo_topk_tv, dppo_topk_kl = jax.jit(dppo.dppo_topk_tv), jax.jit(dppo.dppo_topk_kl)

LOG_POLICY, LOG_ROLLOUT = np.float32(np.log(fixture.POLICY)), np.float32(np.log(fixture.ROLLOUT))


@pytest.mark.parametrize(
    ("rule", "limit", "advantage", "expected"),
    [
        (dppo_tv, 0.15, 1.0, "11111"),
        (dppo_tv, 0.15, -1.0, "11111"),
        (dppo_tv, 0.05, 1.0, "10011"),
        (dppo_tv, 0.05, -1.0, "01111"),
        (dppo_tv, 0.05, 0.0, "01111"),
        (dppo_kl, 0.05, 1.0, "10011"),
        (dppo_kl, 0.05, -1.0, "11111"),
        (dppo_kl, 0.02, -1.0, "01111"),
    ],
)
def test_golden_on_the_fixture_of_all_gates(rule, limit, advantage, expected):
    advantages = np.full(5, advantage, np.float32)
    arrays = (LOG_POLICY, LOG_ROLLOUT, advantages, fixture.MASK)
    assert fixture.bits(rule(*arrays, low=limit, high=limit)) == expected
    # Each side has its own limit.
    sides = {"low": 9.0, "high": limit} if advantage > 0 else {"low": limit, "high": 9.0}
    assert fixture.bits(rule(*arrays, **sides)) == expected


def test_the_limit_itself_is_kept():
    """|0.75 - 0.5| = 0.25, exact when the log-probs are 0 and -infinity."""
    keep = dppo_tv(
        jnp.zeros(1), jnp.full(1, -jnp.inf), jnp.ones(1), jnp.ones(1, bool), low=1.0, high=1.0
    )
    assert keep[0] == 1.0


@pytest.mark.parametrize(
    ("rule", "divergence"), [(dppo_topk_tv, 0.2), (dppo_topk_kl, 0.105404787729)]
)
def test_topk(rule, divergence):
    """The first listed token was sampled and lost mass, the second gained some."""
    rollout, policy = np.float32(np.log([[0.6, 0.3]] * 4)), np.float32(np.log([[0.4, 0.35]] * 4))
    sampled = np.array([0, 0, 1, 1])
    arrays = (
        policy[np.arange(4), sampled],
        rollout[np.arange(4), sampled],
        policy,
        rollout,
        np.float32([1.0, -1.0, 1.0, -1.0]),
        np.ones(4, bool),
    )
    for factor, expected in ((1.00001, "1111"), (0.99999, "1001")):
        limit = divergence * factor
        assert fixture.bits(rule(*arrays, low=limit, high=limit)) == expected
