"""PPO's clip as a keep rule, and that it gives the gradient of the clipped objective."""

import math

import jax
import numpy as np
import pytest

from jaxrl_single.keep_rules import one_sided
from tests.keep_rules import fixture

ppo_clip = jax.jit(one_sided.ppo_clip, static_argnames=("low", "high"))


@pytest.mark.parametrize(
    ("advantage", "expected"), [(1.0, "10111"), (-1.0, "11110"), (0.0, "1" * 5)]
)
def test_golden_on_the_fixture_of_all_gates(advantage, expected):
    keep = ppo_clip(
        np.float32(fixture.LOG_RATIO),
        np.full(5, advantage, np.float32),
        fixture.MASK,
        low=0.2,
        high=0.28,
    )
    assert fixture.bits(keep) == expected


@pytest.mark.parametrize(
    ("advantage", "expected"), [(1.0, [0.7, 1.1, 0.0]), (-1.0, [0.0, -1.1, -1.5])]
)
def test_times_ratio_and_advantage_it_is_ppos_coefficient(advantage, expected):
    ratio = np.float32([0.7, 1.1, 1.5])
    advantages = np.full(3, advantage, np.float32)
    keep = ppo_clip(np.log(ratio), advantages, np.ones(3, bool), low=0.2, high=0.28)
    np.testing.assert_allclose(keep * ratio * advantages, expected, rtol=1e-6)


def test_the_bounds_themselves_are_kept():
    log_ratio = np.float32([math.log(1.28), math.log(0.8)])
    advantages = np.float32([1.0, -1.0])
    for x, expected in ((log_ratio, "11"), (log_ratio * np.float32(1 + 1e-6), "00")):
        keep = ppo_clip(x, advantages, np.ones(2, bool), low=1.0 - 0.8, high=0.28)
        assert fixture.bits(keep) == expected
