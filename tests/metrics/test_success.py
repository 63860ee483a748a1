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


def outcomes(both, gained, lost, neither):
    kinds = [(True, True)] * both + [(False, True)] * gained + [(True, False)] * lost
    kinds += [(False, False)] * neither
    return ({i: pair[side] for i, pair in enumerate(kinds)} for side in (0, 1))


def test_a_change_counts_the_same_tasks():
    before, after = outcomes(both=20, gained=12, lost=2, neither=16)
    found = success.change(before, {**after, "another": True})
    assert (found.n, found.gained, found.lost, found.difference) == (50, 12, 2, 0.2)
    # By hand: Wilson's intervals are 0.5014 to 0.7586 (32 of 50) and 0.3116 to 0.5769 (22 of 50).
    # The correlation is (20 x 16 - 12 x 2 - 25) / sqrt(32 x 18 x 22 x 28) = 271 / 595.66 = 0.4550.
    # Below: sqrt(0.1386^2 - 2 x 0.4550 x 0.1386 x 0.1369 + 0.1369^2) = 0.1438.
    # Above: sqrt(0.1186^2 - 2 x 0.4550 x 0.1186 x 0.1284 + 0.1284^2) = 0.1292.
    assert found.ci_low == pytest.approx(0.2 - 0.1438, abs=1e-4)
    assert found.ci_high == pytest.approx(0.2 + 0.1292, abs=1e-4)
    assert found.verdict == "better"
    assert success.change({"a": True}, {"b": True}) is None


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((0, 60, 0, 0), "better"),
        ((0, 0, 60, 0), "worse"),
        ((30, 5, 6, 19), "unchanged"),
        ((0, 0, 0, 60), "unchanged"),
        ((60, 0, 0, 0), "unchanged"),
        ((0, 1, 0, 0), "unchanged"),  # one task says nothing
    ],
)
def test_a_verdict_needs_an_interval_without_0(counts, verdict):
    found = success.change(*outcomes(*counts))
    assert found.verdict == verdict
    assert -1 <= found.ci_low <= found.difference <= found.ci_high <= 1


def test_the_interval_turns_with_the_sides():
    low, high = success.paired_interval(13, 8, 3, 6)
    assert success.paired_interval(13, 3, 8, 6) == pytest.approx((-high, -low))


def test_the_interval_covers_as_it_says():
    """All outcomes of 20 pairs, weighed by their chance: at least 93 % hold the truth."""
    n, chances = 20, (0.35, 0.25, 0.1, 0.3)
    truth, covered = chances[1] - chances[2], 0.0
    for both in range(n + 1):
        for gained in range(n + 1 - both):
            for lost in range(n + 1 - both - gained):
                counts = (both, gained, lost, n - both - gained - lost)
                low, high = success.paired_interval(*counts)
                if low <= truth <= high:
                    ways = math.factorial(n) / math.prod(map(math.factorial, counts))
                    covered += ways * math.prod(p**c for p, c in zip(chances, counts, strict=True))
    assert 0.93 < covered < 0.99
