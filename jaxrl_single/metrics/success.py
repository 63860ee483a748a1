"""Success rates and their differences, with intervals; errors are left out and counted."""

import dataclasses
import math
from collections.abc import Mapping

Z_95 = 1.959963984540054  # two-sided 95 % quantile of the standard normal


@dataclasses.dataclass(frozen=True)
class Success:
    """Result of one evaluation.

    Attributes:
      n: tasks that ended with a verdict.
      errors: tasks whose environment or reward failed.
      success: fraction of n; NaN when n is 0.
      ci_low, ci_high: 95 % Wilson score interval of it.
    """

    n: int
    errors: int
    success: float
    ci_low: float
    ci_high: float


def measure(verdicts: list[bool | None]) -> Success:
    """Counts verdicts, None being an error."""
    known = [verdict for verdict in verdicts if verdict is not None]
    errors = len(verdicts) - len(known)
    if not known:
        return Success(0, errors, math.nan, 0.0, 1.0)
    low, high = wilson_interval(sum(known), len(known))
    return Success(len(known), errors, sum(known) / len(known), low, high)


def wilson_interval(successes: int, n: int, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a binomial proportion (Wilson 1927, eq. 1); n >= 1.

    Unlike the normal approximation it stays within [0, 1] and has a width at 0 and n successes. It
    always holds successes / n.
    """
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At 0 and n successes one end is p itself, which rounding may miss.
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


@dataclasses.dataclass(frozen=True)
class Change:
    """Success after minus success before, on the tasks that both have.

    Attributes:
      n: tasks with a verdict in both.
      gained, lost: tasks that only succeeded after, and only before.
      difference: (gained - lost) / n.
      ci_low, ci_high: its 95 % interval.
      verdict: "better" or "worse" when the interval excludes 0, else "unchanged".
    """

    n: int
    gained: int
    lost: int
    difference: float
    ci_low: float
    ci_high: float

    @property
    def verdict(self) -> str:
        if self.ci_low > 0:
            return "better"
        return "worse" if self.ci_high < 0 else "unchanged"


def change(before: Mapping[str, bool], after: Mapping[str, bool]) -> Change | None:
    """Compares two evaluations task by task; None when they share no task.

    Args:
      before, after: by task, whether it succeeded.
    """
    shared = before.keys() & after.keys()
    if not shared:
        return None
    counts = {(b, a): 0 for b in (False, True) for a in (False, True)}
    for task in shared:
        counts[bool(before[task]), bool(after[task])] += 1
    gained, lost, n = counts[False, True], counts[True, False], len(shared)
    low, high = paired_interval(counts[True, True], gained, lost, counts[False, False])
    return Change(n, gained, lost, (gained - lost) / n, low, high)


def paired_interval(both: int, gained: int, lost: int, neither: int) -> tuple[float, float]:
    """Interval of (gained - lost) / n of paired proportions; n >= 1.

    Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions
    based on paired data", method 10: Wilson's intervals of both proportions, put together with the
    correlation between them.
    """
    n = both + gained + lost + neither
    after, before = both + gained, both + lost
    margins = after * (n - after) * before * (n - before)
    surplus = both * neither - gained * lost
    if surplus > 0:
        surplus = max(surplus - n / 2, 0)
    correlation = surplus / math.sqrt(margins) if margins else 0.0
    (low_1, high_1), (low_2, high_2) = wilson_interval(after, n), wilson_interval(before, n)
    below = _combined(after / n - low_1, high_2 - before / n, correlation)
    above = _combined(high_1 - after / n, before / n - low_2, correlation)
    difference = (gained - lost) / n
    return max(-1.0, difference - below), min(1.0, difference + above)


def _combined(one: float, other: float, correlation: float) -> float:
    """Length of the difference of two deviations; rounding must not make its square negative."""
    return math.sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))
