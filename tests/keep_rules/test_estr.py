"""ESTR: worked numbers, the bound itself, calibration."""

import jax
import numpy as np
import pytest

from jaxrl_single.keep_rules import estr
from tests.keep_rules import fixture

CONSTANTS = {"masked_fraction": 0.0007, "offset": 0.01}
STATISTIC = [0.036528736, 1.27904462, 0.026715267, 0.000949847, 1.761427944]
rule = jax.jit(estr.estr, static_argnames=("masked_fraction", "offset"))


@pytest.mark.parametrize(
    ("tau", "expected"), [(0.5, "10110"), (1.0, "10110"), (1.5, "11110"), (2.0, "11111")]
)
def test_golden_on_the_fixture_of_all_gates(tau, expected):
    arrays = np.float32(fixture.LOG_RATIO), np.float32(fixture.ENTROPIES), fixture.MASK
    keep, _ = rule(estr.estr_init(3, tau=tau), *arrays, **CONSTANTS)
    assert fixture.bits(keep) == expected


@pytest.mark.parametrize("index", range(5))
def test_a_token_changes_sides_at_its_statistic(index):
    arrays = np.float32(fixture.LOG_RATIO), np.float32(fixture.ENTROPIES), fixture.MASK
    for factor, expected in ((0.99999, "0"), (1.00001, "1")):
        state = estr.estr_init(1, tau=STATISTIC[index] * factor)
        assert fixture.bits(rule(state, *arrays, **CONSTANTS)[0])[index] == expected


@pytest.mark.parametrize(("entropy", "tau"), [(0.01, 12.5), (0.5, 0.490196078), (2.0, 0.124378109)])
def test_the_band_widens_with_the_root_of_the_entropy(entropy, tau):
    arrays = np.full(1, 0.5, np.float32), np.full(1, entropy, np.float32), np.ones(1, bool)
    for factor, expected in ((0.99999, 0.0), (1.00001, 1.0)):
        keep, _ = rule(estr.estr_init(1, tau=tau * factor), *arrays, **CONSTANTS)
        assert keep[0] == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bound_itself_is_kept_at_entropy_zero(dtype):
    """0.1^2 / 0.01 is 1, but the float32 square of 0.1 is larger than 0.01."""
    log_ratio, entropies = np.array([0.1, -0.1, 0.10001], dtype), np.zeros(3, dtype)
    with jax.enable_x64(dtype == np.float64):
        keep, _ = estr.estr(
            estr.estr_init(1, tau=1.0), log_ratio, entropies, np.ones(3, bool), **CONSTANTS
        )
        assert fixture.bits(keep) == "110"


def first_batch():
    rng = np.random.default_rng(1)
    log_ratio = np.float32(rng.normal(size=(40, 100)) * 0.1)
    entropies, mask = np.float32(rng.random((40, 100))), rng.random((40, 100)) < 0.9
    return log_ratio, entropies, mask


@pytest.mark.parametrize("fraction", [0.0007, 0.01])
def test_calibrates_on_the_first_batch_and_keeps_that(fraction):
    log_ratio, entropies, mask = first_batch()
    constants = {"masked_fraction": fraction, "offset": 0.01}
    keep, state = rule(estr.estr_init(1, tau=0.0), log_ratio, entropies, mask, **constants)
    statistic = (np.float64(log_ratio) ** 2 / (np.float64(entropies) + 0.01))[mask]
    # The place of the quantile is a float32: that interpolates with an error near 1e-4.
    assert state["tau"] == pytest.approx(np.quantile(statistic, 1 - fraction), rel=1e-4)
    dropped = int(np.sum(mask) - np.sum(keep))
    assert dropped == np.ceil(fraction * (mask.sum() - 1))
    wilder = 3.0 * log_ratio
    later, after = rule(state, wilder, entropies, mask, **constants)
    assert after["tau"] == state["tau"]
    assert np.sum(later) < np.sum(keep)


def test_a_batch_of_rounding_errors_calibrates_nothing_and_is_kept():
    log_ratio, entropies, mask = first_batch()
    start = estr.estr_init(1, tau=0.0)
    keep, state = rule(start, 1e-6 * log_ratio, entropies, mask, **CONSTANTS)
    np.testing.assert_array_equal(keep, mask)
    assert np.isnan(state["tau"])
    _, after = rule(state, log_ratio, entropies, mask, **CONSTANTS)
    _, directly = rule(start, log_ratio, entropies, mask, **CONSTANTS)
    assert after["tau"] == directly["tau"]


@pytest.mark.parametrize("rounding", [True, False])
@pytest.mark.parametrize("broken", ["log_ratio", "entropies"])
def test_a_broken_token_is_dropped_and_calibrates_nothing(broken, rounding):
    log_ratio, entropies, mask = first_batch()
    log_ratio = 1e-6 * log_ratio if rounding else log_ratio
    token = int(np.flatnonzero(mask)[3])
    values = {"log_ratio": log_ratio.copy(), "entropies": entropies.copy()}
    values[broken][token] = np.nan
    start = estr.estr_init(1, tau=0.0)
    keep, state = rule(start, values["log_ratio"], values["entropies"], mask, **CONSTANTS)
    without = mask.copy()
    without[token] = False
    expected, directly = rule(start, log_ratio, entropies, without, **CONSTANTS)
    np.testing.assert_array_equal(keep, expected)
    np.testing.assert_array_equal(state["tau"], directly["tau"])


def test_a_given_tau_stays():
    state = estr.estr_init(7, tau=2.0)
    _, after = rule(state, *first_batch(), **CONSTANTS)
    assert after["tau"] == state["tau"] == 2.0
    assert after["tau"].dtype == np.float32


def test_an_empty_batch_leaves_the_calibration_to_the_next():
    log_ratio, entropies, mask = first_batch()
    state = estr.estr_init(1, tau=0.0)
    keep, state = rule(state, log_ratio, entropies, np.zeros_like(mask), **CONSTANTS)
    assert np.isnan(state["tau"])
    assert not keep.any()
    keep, state = rule(state, log_ratio, entropies, mask, **CONSTANTS)
    assert state["tau"] > 0
    assert keep.any()
