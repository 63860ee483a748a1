"""JSON as models write it: texts may hold line breaks as they are. No jax."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 100  # of lists and objects in each other; whoever reads them again may recurse
BLANKS = " \t\n\r"
_BLANK_RUN = re.compile(f"[{BLANKS}]*+")


def parse(text: str) -> Any:
    """The value of a text.

    Raises:
      ValueError: it is no JSON, names a key twice, is nested too deeply, or holds numbers that are
        none, or halves of characters.
    """
    start = skip_blanks(text, 0)
    found, end = parse_from(text, start)
    rest = skip_blanks(text, end)
    if rest < len(text):
        raise ValueError(f"{text[rest : rest + 20]!r} follows its end")
    return found


def parse_from(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends; ValueError as of `parse`."""
    try:
        found, end = _DECODER.raw_decode(text, start)
        _check_depth(found)
        if "\\u" in text[start:end]:  # only so halves of characters can be written
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found, end


def parse_or(text: str, otherwise: Any) -> Any:
    """The value of a text, `otherwise` where it is none."""
    try:
        return parse(text)
    except ValueError:
        return otherwise


def skip_blanks(text: str, start: int) -> int:
    """The first place from `start` on that is no blank of JSON."""
    found = _BLANK_RUN.match(text, start)
    return start if found is None else found.end()


def _check_depth(found: Any) -> None:
    level = [found]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
        if not inner:
            return
        level = inner
    raise ValueError(f"nested too deeply, {MAX_DEPTH} levels are allowed")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice!r} stands twice")
    return found


def _finite(digits: str) -> float:
    found = float(digits)
    if math.isinf(found):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=_finite,
    strict=False,
    object_pairs_hook=_unique,
)
