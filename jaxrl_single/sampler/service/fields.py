"""Reads the fields of a JSON body one by one; whatever is wrong is refused by the field's name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from jaxrl_single.sampler.service import http_errors

_LARGEST_ID = 2**31 - 1
_LARGEST_NUMBER = 3e38  # of float32


class Fields:
    """The fields that nobody has taken yet; null counts as absent.

    Every method but `refuse_rest` takes one field and raises ApiError (400, with the name) if it
    is not what the method says.
    """

    def __init__(self, body: Mapping[str, Any]):
        self._left = {name: value for name, value in body.items() if value is not None}
        self._known: set[str] = set()

    def take(self, name: str) -> Any:
        """Whatever is there, None if nothing is."""
        self._known.add(name)
        return self._left.pop(name, None)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise _unexpected(name, value, "true or false")
        return value

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """Between low and high, both allowed."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _unexpected(name, value, f"an integer, {low} .. {high}")
        return value

    def number(self, name: str, default: float, low: float, high: float = math.inf) -> float:
        """Between low and high, both allowed."""
        value = self.take(name)
        if value is None:
            return default
        if not is_number(value) or not low <= value <= high:
            limit = f" .. {high:g}" if high < math.inf else " or more"
            raise _unexpected(name, value, f"a number, {low:g}{limit}")
        return float(value)

    def string(self, name: str) -> str | None:
        """Not empty."""
        value = self.take(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise _unexpected(name, value, "a string that is not empty")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """One string or a list of them, none empty."""
        value = self.take(name)
        found = [value] if isinstance(value, str) else value or []
        if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
            raise _unexpected(name, value, "a string or a list of strings, none of them empty")
        return tuple(found)

    def ids(self, name: str) -> tuple[int, ...]:
        """A list of token ids."""
        value = self.take(name)
        if not are_ids(value or []):
            raise _unexpected(name, value, "a list of token ids")
        return tuple(value or ())

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name)
        if not isinstance(value or {}, dict):
            raise _unexpected(name, value, "an object")
        return value or {}

    def refuse_unless(self, neutral: Mapping[str, Collection[Any]]) -> None:
        """Takes fields that may be there only with one of the values by which nothing changes."""
        for name, values in neutral.items():
            value = self.take(name)
            if value is not None and value not in values:
                raise http_errors.wrong(
                    f"{name} = {value!r:.80} is not supported here; leave it out", name
                )

    def refuse_rest(self) -> None:
        """Raises ApiError for a field that nobody took."""
        for name in self._left:
            message = f"unknown field {name!r:.80}; known are {sorted(self._known)}"
            raise http_errors.wrong(message, name, "unknown_field")


def is_number(value: Any) -> bool:
    """One that float32 can hold; bool is an int to Python only."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and abs(value) <= _LARGEST_NUMBER


def are_ids(value: Any) -> bool:
    """A list of what may be token ids."""
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _LARGEST_ID
        for item in value
    )


def _unexpected(name: str, value: Any, expected: str) -> http_errors.ApiError:
    return http_errors.wrong(f"{name} is {value!r:.80}, expected {expected}", name)
