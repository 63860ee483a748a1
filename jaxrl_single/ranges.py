"""Which numbers a setting may have, for one readable message before a run begins."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Range:
    """An interval. `str` says it after "must be"; NaN lies in none.

    Attributes:
      low, high: its ends; infinite where there is none.
      low_open, high_open: the end itself is not allowed.
    """

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, number: float) -> bool:
        above = number > self.low if self.low_open else number >= self.low
        below = number < self.high if self.high_open else number <= self.high
        return above and below

    def __str__(self) -> str:
        if self.high < math.inf:
            left, right = "(" if self.low_open else "[", ")" if self.high_open else "]"
            return f"in {left}{self.low}, {self.high}{right}"
        return f"greater than {self.low}" if self.low_open else f"at least {self.low}"


ANY = Range()
POSITIVE = Range(0, low_open=True)
NOT_NEGATIVE = Range(0)
FROM_ONE = Range(1)
FRACTION = Range(0, 1)
PART = Range(0, 1, low_open=True)  # of something, not nothing of it
BELOW_ONE = Range(0, 1, high_open=True)
INSIDE = Range(0, 1, low_open=True, high_open=True)
