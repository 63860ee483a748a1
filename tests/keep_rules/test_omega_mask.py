"""Bellman BPO's mask: the worked row, uncapped omega."""

import numpy as np
import pytest

from jaxrl_single.keep_rules import omega_mask
from tests.keep_rules import fixture

ROLLOUT = np.float32(np.log([0.5, 0.9, 0.3, 0.97]))
POLICY = np.float32(np.log([0.9, 0.5, 0.32, 0.05]))


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, "0111"), (-1.0, "1010"), (0.0, "1111")])
def test_golden_row(advantage, expected):
    advantages = np.full(4, advantage, np.float32)
    keep = omega_mask.omega_mask(
        POLICY, ROLLOUT, advantages, np.ones(4, bool), eps=0.1, low=0.2, high=0.28
    )
    assert fixture.bits(keep) == expected


def test_is_bounded_at_a_certain_token():
    """omega of (0.1, 1) is 10, that of (1, 1) is 1."""
    rollout = np.float32([np.log(0.1), 0.0])
    for high, expected in ((9.0001, "11"), (8.9999, "01")):
        keep = omega_mask.omega_mask(
            np.zeros(2, np.float32),
            rollout,
            np.ones(2, np.float32),
            np.ones(2, bool),
            eps=0.1,
            low=0.2,
            high=high,
        )
        assert fixture.bits(keep) == expected
