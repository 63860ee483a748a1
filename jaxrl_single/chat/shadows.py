"""Text of others on its way through a chat template, told apart from what the template writes.

Each character of a message is given to the template as another one, from planes of Unicode that
nobody uses. The template can place it, trim it and write it as JSON, but cannot mistake it for a
word of its own, and what comes out shows for every character who wrote it. CONTENT is what
systems, users and tools say; SAID is what the assistant said. No jax.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

TEMPLATE, CONTENT, SAID = 0, 1, 2
FIRST = 0xA0000  # what templates and their variables must not contain themselves
_TRACES = 0xA0000
_REST = {CONTENT: 0xB0000, SAID: 0xC0000}  # characters beyond the first plane, as they come
_BASIC = {CONTENT: 0xD0000, SAID: 0xF0000}  # those of the first plane, each at its place
_PLANE = 0x10000
_ESCAPES = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
BLANKS = "".join(chr(code) for code in range(_PLANE) if chr(code).isspace())


def _all_kinds(characters: str) -> str:
    return characters + "".join(
        chr(base + ord(one)) for base in _BASIC.values() for one in characters if ord(one) < _PLANE
    )


_ALL_BLANKS = _all_kinds(BLANKS)


def _json_escapes() -> dict[int, str]:
    table = {}
    for base in _BASIC.values():
        for code in range(0x20):
            table[base + code] = "".join(chr(base + ord(one)) for one in f"\\u{code:04x}")
        for character, letter in _ESCAPES.items():
            table[base + ord(character)] = chr(base + ord("\\")) + chr(base + ord(letter))
    return table


_JSON_ESCAPES = _json_escapes()


def escape_json(text: str) -> str:
    """JSON that holds hidden texts, with what JSON escapes escaped in these too."""
    return text.translate(_JSON_ESCAPES)


def strip(text: str, method: str, characters: str | None = None) -> str:
    """str.strip, lstrip or rstrip, to which hidden blanks are blanks."""
    wanted = _ALL_BLANKS if characters is None else _all_kinds(characters)
    return getattr(text, method)(wanted)


def clear(text: str) -> str:
    """A hidden text as it is, for comparisons; characters beyond the first plane stay hidden."""
    codes = [code for code in map(ord, text) if not _TRACES <= code < _TRACES + _PLANE]
    bases = _BASIC.values()
    return "".join(
        chr(next((code - base for base in bases if base <= code < base + _PLANE), code))
        for code in codes
    )


@dataclasses.dataclass(frozen=True)
class Shown:
    """What a template made of a conversation.

    Attributes:
      text: the characters, all in clear.
      origins: [len(text)] of TEMPLATE, CONTENT, SAID: who wrote each.
    """

    text: str
    origins: np.ndarray

    def __getitem__(self, place: slice) -> Shown:
        return Shown(self.text[place], self.origins[place])

    def runs(self) -> Iterator[tuple[str, int]]:
        """Neighbours of one origin: (text, origin)."""
        cuts = np.flatnonzero(np.diff(self.origins)) + 1
        borders = [0, *cuts.tolist(), len(self.text)]
        for start, end in itertools.pairwise(borders):
            if end > start:
                yield self.text[start:end], int(self.origins[start])


class Shadows:
    """Hides the texts of one rendering, and finds them in it."""

    def __init__(self):
        self._rest: dict[tuple[int, str], int] = {}
        self._clear: dict[int, int] = {}
        self._traces: list[str] = []

    def hide(self, text: str, kind: int, trace: str = "") -> str:
        """The text in hidden characters.

        Args:
          kind: CONTENT or SAID.
          trace: if given, `reveal` tells those of which nothing is left by this name. A text of
            blanks alone leaves none.
        """
        base = _BASIC[kind]
        hidden = "".join(
            chr(base + code) if code < _PLANE else chr(self._other(code, kind))
            for code in map(ord, text)
        )
        lead = len(text) - len(text.lstrip())
        if not trace or lead == len(text):
            return hidden
        self._traces.append(trace)
        if len(self._traces) >= _PLANE:
            raise ValueError("there are too many messages, tools and calls in one conversation")
        return hidden[:lead] + chr(_TRACES + len(self._traces) - 1) + hidden[lead:]

    def reveal(self, text: str) -> tuple[Shown, list[str]]:
        """What a template wrote, and the traces that are not in it."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        is_trace = (codes >= _TRACES) & (codes < _TRACES + _PLANE)
        left = set((codes[is_trace] - _TRACES).tolist())
        codes = codes[~is_trace]
        found, origins = codes.copy(), np.zeros(len(codes), np.int8)
        for kind in (CONTENT, SAID):
            basic = (codes >= _BASIC[kind]) & (codes < _BASIC[kind] + _PLANE)
            rest = (codes >= _REST[kind]) & (codes < _REST[kind] + _PLANE)
            origins[basic | rest] = kind
            found[basic] -= _BASIC[kind]
            found[rest] = [self._clear[code] for code in codes[rest].tolist()]
        clear = found.tobytes().decode("utf-32-le", "surrogatepass")
        missing = [name for number, name in enumerate(self._traces) if number not in left]
        return Shown(clear, origins), missing

    def _other(self, code: int, kind: int) -> int:
        key = (kind, code)
        if key not in self._rest:
            self._rest[key] = _REST[kind] + len(self._rest)
            self._clear[self._rest[key]] = code
            if len(self._rest) >= _PLANE:
                raise ValueError("the messages hold too many different characters")
        return self._rest[key]
