"""Mathematical answers: the same number, expression, set or interval, however it is written."""

from __future__ import annotations

import logging
import re
from typing import Any

PACKAGE = "math_verify"
# Read as mathematics they would be products of letters, and "on" would be "no".
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*\.?")


def score(right: str, given: str) -> float:
    """1 when both answers mean the same, else 0; texts that are no mathematics must be equal.

    It has no deadline of its own and may run for ever: see judge.py.

    Args:
      right: plain or LaTeX, with or without dollar signs or \\boxed{}.
      given: of the same forms.

    Raises:
      ValueError: the package math-verify is missing.
    """
    library = load()
    wanted = [] if _WORDS.fullmatch(right.strip()) else _parse(library, right)
    if not wanted:
        return float(given.strip().casefold() == right.strip().casefold())
    # Both readings of 1/2 and \frac{1}{2} without dollar signs count.
    return float(library.verify(wanted, _parse(library, given), timeout_seconds=None))


def load() -> Any:
    """The package math_verify.

    Raises:
      ValueError: it is not installed.
    """
    try:
        import math_verify
    except ImportError as error:
        raise ValueError(
            f"env.answer_check 'math' needs the package math-verify, which cannot be imported "
            f"({error}); install it with: pip install 'jaxrl_single[envs]'"
        ) from error
    # It warns of every call without a deadline of its own.
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)
    return math_verify


def _parse(library: Any, text: str) -> list[Any]:
    """What the library reads in a text; LaTeX is found between dollar signs only."""
    plain = text.strip()
    if "$" in plain or "\\boxed" in plain or "\\[" in plain or "\\(" in plain:
        return library.parse(plain, parsing_timeout=None)
    return library.parse(f"${plain}$", parsing_timeout=None)
