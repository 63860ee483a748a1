"""A file of token ids: JSON lines {"token_ids": [1, 2, 3]}, and "id" (any JSON value) if wanted."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np

from jaxrl_single.lab import lines as lines_lib

_ALLOWED = {"token_ids", "id"}
_SHOWN = 5  # lines in a message


class BadLines(ValueError):
    """Lines of the file cannot be used; the message names them and says what is wrong."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
      number: in the file, from 1.
      id: what the line has as "id", None if nothing.
      tokens: i32 [T], T >= 1.
    """

    number: int
    id: Any
    tokens: np.ndarray


def read(path: str | os.PathLike, *, vocab_size: int) -> list[Line]:
    """Reads all lines; empty ones are left out.

    Args:
      vocab_size: of the model; ids are below it.

    Raises:
      BadLines: see there; all lines are looked at first.
      OSError: the file cannot be read.
    """
    found, wrong = [], []
    for number, line in lines_lib.numbered(path):
        if not line.strip():
            continue
        try:
            found.append(_line(number, line, vocab_size))
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        more = f"; {len(wrong)} lines are wrong in all" if wrong[_SHOWN:] else ""
        raise BadLines(f"{path}, {'; '.join(wrong[:_SHOWN])}{more}")
    if not found:
        raise BadLines(f"{path}: there is no line in it")
    return found


def _line(number: int, line: str, vocab_size: int) -> Line:
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found a {type(record).__name__}")
    unknown = sorted(set(record) - _ALLOWED)
    if unknown:
        raise ValueError(f"unknown fields {unknown}; allowed are {sorted(_ALLOWED)}")
    ids = record.get("token_ids")
    if not isinstance(ids, list) or not ids:
        raise ValueError("token_ids: expected a list of at least one token id")
    for place, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ValueError(
                f"token_ids[{place}] is {token!r:.80}, expected a number 0 .. {vocab_size - 1}"
            )
    return Line(number, record.get("id"), np.asarray(ids, np.int32))
