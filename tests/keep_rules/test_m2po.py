"""M2PO: worked thresholds, an independent version, the budget."""

import jax
import numpy as np
import pytest

from jaxrl_single.keep_rules import m2po
from tests.keep_rules import fixture

rule = jax.jit(m2po.m2po, static_argnames=("budget", "low", "high"))
threshold_of = jax.jit(m2po.threshold)

CONSTANTS = {"budget": 0.04, "low": 0.3, "high": 0.5}


def threshold(log_ratio, advantages, budget=0.04):
    return threshold_of(*batch(log_ratio, advantages), budget=budget)


def batch(log_ratio, advantages):
    """Filled up to 100 tokens, so that all tests share one program."""
    log_ratio = np.asarray(log_ratio, np.float32)
    advantages = np.broadcast_to(np.float32(advantages), log_ratio.shape)
    filling = (0, 100 - len(log_ratio))
    filled = [np.pad(x, filling, constant_values=np.nan) for x in (log_ratio, advantages)]
    return *filled, np.arange(100) < len(log_ratio)


def kept(log_ratio, advantages):
    return fixture.bits(rule(*batch(log_ratio, advantages), **CONSTANTS))[: len(log_ratio)]


def threshold_by_hand(log_ratio, advantages, budget):
    """One harmful token after the other, in float64."""
    squares = sorted(x * x for x, a in zip(log_ratio, advantages, strict=True) if x * a > 0)
    if sum(squares) <= budget * len(squares):
        return np.inf
    for k, limit in enumerate(squares):
        if sum(min(x, limit) for x in squares) >= budget * len(squares):
            return np.sqrt(squares[k - 1]) if k else 0.0
    raise AssertionError


@pytest.mark.parametrize(
    ("advantage", "tau", "expected"), [(1.0, 0.074901308, "10111"), (-1.0, 0.182321557, "11110")]
)
def test_golden_on_the_fixture_of_all_gates(advantage, tau, expected):
    """The published least clip [0.7, 1.5] is wider than exp(+-tau)."""
    assert threshold(fixture.LOG_RATIO, advantage) == pytest.approx(tau, abs=1e-6)
    assert kept(fixture.LOG_RATIO, advantage) == expected


def test_the_threshold_may_be_wider_than_the_least_clip():
    """Clip [0.4966, 2.0138] for both signs: 0.7 stays, 2 goes."""
    log_ratio = np.float32([1e-9] * 36 + [0.5, 0.6, 0.7, 2.0])
    for sign in (1.0, -1.0):
        assert threshold(sign * log_ratio, sign) == np.float32(0.7)
        assert kept(sign * log_ratio, sign) == "1" * 39 + "0"


def test_under_budget_nothing_is_clipped():
    """Harmful are the first two only: mean (0.1^2 + 0.15^2) / 2 = 0.01625."""
    assert threshold([0.1, 0.15, -0.9], 1.0) == np.inf
    assert np.isfinite(threshold([0.1, 0.15, -0.9], 1.0, budget=0.016))
    assert kept([1e-6] * 99 + [1.9], 1.0) == "1" * 100  # a ratio far beyond 1.5


def test_over_budget():
    assert threshold([0.1, 0.2, 0.3, 0.6, 0.9], 1.0) == np.float32(0.2)  # mean square 0.262


def test_the_first_token_may_exceed_the_budget():
    assert threshold([0.5], 1.0) == 0.0


def test_tokens_without_advantage_neither_count_nor_go():
    assert threshold([5.0, 0.1], [0.0, 1.0]) == np.inf
    assert kept([5.0], 0.0) == "1"


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_version_by_hand(seed):
    rng = np.random.default_rng(seed)
    log_ratio, advantages = rng.normal(size=50) * rng.choice([0.1, 0.3, 1.0]), rng.normal(size=50)
    mask = rng.random(50) < 0.8
    with jax.enable_x64(True):
        for budget in (0.01, 0.04, 0.3):
            got = threshold_of(log_ratio, advantages, mask, budget=budget)
            expected = threshold_by_hand(log_ratio[mask], advantages[mask], budget)
            np.testing.assert_allclose(got, expected, rtol=1e-12)
