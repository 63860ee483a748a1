import math

import pytest

from jaxrl_single import ranges


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (ranges.ANY, (-math.inf, 0, math.inf), (), "at least -inf"),
        (ranges.POSITIVE, (1e-9, 2, math.inf), (0, -1), "greater than 0"),
        (ranges.NOT_NEGATIVE, (0, 0.0, 5), (-1e-9,), "at least 0"),
        (ranges.FROM_ONE, (1, 2), (0, 0.5), "at least 1"),
        (ranges.FRACTION, (0, 0.5, 1), (-0.1, 1.1), "in [0, 1]"),
        (ranges.PART, (0.5, 1), (0, 1.1), "in (0, 1]"),
        (ranges.BELOW_ONE, (0, 0.99), (1,), "in [0, 1)"),
        (ranges.INSIDE, (0.5,), (0, 1), "in (0, 1)"),
    ],
)
def test_ends_belong_to_a_range_or_not(allowed, inside, outside, words):
    assert all(number in allowed for number in inside)
    assert not any(number in allowed for number in (*outside, math.nan))
    assert str(allowed) == words
