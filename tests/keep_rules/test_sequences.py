"""Sequence rules: the fixture, log space, closed bounds."""

import jax
import numpy as np
import pytest

from jaxrl_single.keep_rules import sequences
from jaxrl_single.objectives import corrections
from tests.keep_rules import fixture

sequence_mis = jax.jit(sequences.sequence_mis, static_argnums=3, static_argnames="cap")
geometric_band = jax.jit(sequences.geometric_band, static_argnums=3, static_argnames="cap")
veto = jax.jit(sequences.veto, static_argnums=3, static_argnames="floor")

OWNERS = (fixture.MASK, fixture.INDEX, 1)
OFF_POLICY = np.float32(fixture.LOG_RATIO)
NEAR_ON_POLICY = np.float32(np.log([1.01, 0.99, 1.02, 0.985, 1.0]))


def test_masked_importance_sampling_on_the_fixture_of_all_gates():
    keep = sequence_mis(OFF_POLICY, *OWNERS, cap=2.0)
    weight = keep * corrections.sequence_ratio(OFF_POLICY, *OWNERS)
    np.testing.assert_allclose(weight, np.full(5, 0.520925925926), rtol=1e-6)


@pytest.mark.parametrize(
    ("log_ratio", "cap", "expected"),
    [
        (OFF_POLICY, 1.001, "00000"),
        (OFF_POLICY, 1.0 / 0.8778, "00000"),
        (OFF_POLICY, 1.0 / 0.8777, "11111"),  # 0.877718383
        (NEAR_ON_POLICY, 1.001, "11111"),
        (NEAR_ON_POLICY, 1.00091, "00000"),
        (-NEAR_ON_POLICY, 1.001, "11111"),
        (-NEAR_ON_POLICY, 1.00091, "00000"),
    ],
)
def test_geometric_band(log_ratio, cap, expected):
    assert fixture.bits(geometric_band(log_ratio, *OWNERS, cap=cap)) == expected


def test_veto():
    """The lowest ratio of the fixture is 0.1."""
    for floor, expected in ((1e-4, "11111"), (0.0999, "11111"), (0.1001, "00000")):
        assert fixture.bits(veto(OFF_POLICY, *OWNERS, floor=floor)) == expected


def test_long_sequences_do_not_overflow():
    """A product of exp(1e7), and one of exp(-1e7), which no veto or band lets pass."""
    mask, index = np.ones(2000, bool), np.repeat([0, 1], 1000)
    log_ratio = np.repeat(np.float32([1e4, -1e4]), 1000)
    owners = (mask, index, 2)
    expected = {"mis": [0, 1], "band": [0, 0], "veto": [1, 0]}
    got = {
        "mis": sequence_mis(log_ratio, *owners, cap=10.0),
        "band": geometric_band(log_ratio, *owners, cap=1.001),
        "veto": veto(log_ratio, *owners, floor=1e-4),
    }
    for name, keep in got.items():
        np.testing.assert_array_equal(keep, np.repeat(expected[name], 1000), err_msg=name)


def test_the_bounds_are_closed():
    one, owners = np.zeros(1, np.float32), (np.ones(1, bool), np.zeros(1, np.int32), 1)
    assert sequence_mis(one, *owners, cap=1.0)[0] == 1.0
    assert geometric_band(one, *owners, cap=1.0)[0] == 1.0
    assert veto(one, *owners, floor=1.0)[0] == 1.0
