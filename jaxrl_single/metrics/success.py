"""Success rate with a confidence interval; errors are left out and counted, not failures."""

import dataclasses
import math

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
