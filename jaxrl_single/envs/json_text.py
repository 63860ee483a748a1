"""JSON as models write it: texts may hold line breaks as they are. No jax."""

from __future__ import annotations

import json
from typing import Any, NoReturn

_BETWEEN = " \n\t;,"


def parse(text: str) -> Any:
    """The value of a text.

    Raises:
      ValueError: it is no JSON, or holds numbers that are none, or halves of characters.
    """
    try:
        found = json.loads(text, parse_constant=_refuse_constant, strict=False)
        # Numbers too large for a float are read as infinite ones.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def parse_or(text: str, otherwise: Any) -> Any:
    """The value of a text, `otherwise` where it is none."""
    try:
        return parse(text)
    except ValueError:
        return otherwise


def objects(text: str) -> list[Any]:
    """Values with blanks, semicolons or commas between, at least one; after the first come objects.

    What follows them is ignored.

    Raises:
      ValueError: one of them is no JSON.
    """
    found: list[Any] = []
    place = 0
    while True:
        while place < len(text) and text[place] in _BETWEEN:
            place += 1
        if found and text[place : place + 1] != "{":
            return found
        try:
            end = json.JSONDecoder(strict=False).raw_decode(text, place)[1]
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        found.append(parse(text[place:end]))
        place = end


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
