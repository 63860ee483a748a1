"""IcePop: the closed band."""

import math

import numpy as np
import pytest

from jaxrl_single.keep_rules import icepop
from jaxrl_single.objectives import corrections
from tests.keep_rules import fixture


def test_golden_on_the_fixture_of_all_gates():
    log_ratio = np.float32(fixture.LOG_RATIO)
    keep = icepop.icepop(log_ratio, fixture.MASK, low=0.5, high=5.0)
    assert fixture.bits(keep) == "10110"
    weight = keep * corrections.engine_ratio(log_ratio, fixture.MASK)
    expected = [0.833333333, 0.0, 1.077777778, 0.966666667, 0.0]
    np.testing.assert_allclose(weight, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bounds_themselves_are_kept(dtype):
    log_ratio = np.array([math.log(0.5), math.log(5.0)], dtype)
    beyond = log_ratio * np.array([1, 1], dtype) * dtype(1 + 1e-6)
    for x, expected in ((log_ratio, "11"), (beyond, "00")):
        assert fixture.bits(icepop.icepop(x, np.ones(2, bool), low=0.5, high=5.0)) == expected


def test_low_zero_drops_nothing_below():
    keep = icepop.icepop(np.float32([-1e4, -np.inf]), np.ones(2, bool), low=0.0, high=5.0)
    assert fixture.bits(keep) == "11"
