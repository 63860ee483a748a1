import math

import pytest

from jaxrl_single.metrics import success


def test_wilson_interval_of_published_values():
    # Newcombe (1998), table I, method 3 (score without continuity correction).
    assert success.wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert success.wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert success.wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert success.wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_the_interval_holds_the_fraction_whatever_rounds():
    for n in range(1, 1025):
        for successes in {0, 1, n - 1, n}:
            low, high = success.wilson_interval(successes, n)
            assert 0 <= low <= successes / n <= high <= 1


def test_errors_are_counted_and_never_failures():
    result = success.measure([True, None, False, True, None])
    assert (result.n, result.errors) == (3, 2)
    assert result.success == pytest.approx(2 / 3)


def test_nothing_but_errors_is_not_zero():
    result = success.measure([None])
    assert math.isnan(result.success)
    assert (result.ci_low, result.ci_high) == (0.0, 1.0)
