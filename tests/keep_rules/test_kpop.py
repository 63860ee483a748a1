"""KPop: published numbers, both directions, saturation."""

import jax
import numpy as np
import pytest

from jaxrl_single.keep_rules import kpop
from tests.keep_rules import fixture

kept = jax.jit(kpop.kpop)


def rule(policy, rollout, threshold):
    with np.errstate(divide="ignore"):
        policy, rollout = np.float32(np.log(policy)), np.float32(np.log(rollout))
    return fixture.bits(kept(policy, rollout, np.ones(policy.shape, bool), threshold=threshold))


@pytest.mark.parametrize(
    ("threshold", "expected"), [(2.0, "11111"), (0.9, "11111"), (0.1, "10111"), (0.05, "10011")]
)
def test_golden_on_the_fixture_of_all_gates(threshold, expected):
    assert rule(fixture.POLICY, fixture.ROLLOUT, threshold) == expected
    assert rule(fixture.ROLLOUT, fixture.POLICY, threshold) == expected  # it is symmetric


@pytest.mark.parametrize(
    ("rollout", "policy", "divergence"),
    [(0.05, 0.9, 2.3762054), (0.001, 0.5, 2.76123071), (0.001, 0.9, 5.89199683)],
)
def test_the_larger_direction_decides(rollout, policy, divergence):
    arrays = np.array([policy]), np.array([rollout])
    assert rule(*arrays, divergence * 0.999999) == "0"
    assert rule(*arrays, divergence * 1.000001) == "1"


def test_certain_tokens_are_kept_and_saturation_is_finite():
    """At 1 against 1 - 1e-7 the divergence is about 2e-7; at 1 against 0 log(1e8) = 18.4."""
    policy, rollout = np.array([1.0, 1.0, 1.0]), np.array([1.0, 1 - 1e-7, 0.0])
    assert rule(policy, rollout, 0.001) == "110"
    assert rule(policy, rollout, 18.5) == "111"
