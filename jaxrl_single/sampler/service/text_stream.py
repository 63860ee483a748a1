"""The text of an answer while it grows, as soon as no further token can change it."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_single.data import text as text_lib
from jaxrl_single.sampler import stops


class AnswerStream:
    """Gives text away piece by piece; the pieces together are the whole text.

    Held back are bytes that are no whole character yet, and all from where one of the strings of
    `hold` begins or may begin: stop strings are no part of an answer, and what they and others
    begin is known at the end only.
    """

    def __init__(self, text: text_lib.Text, *, keep_special: bool, hold: Sequence[str]):
        self._stream = stops.TextStream(lambda ids: text.decode(ids, keep_special=keep_special))
        self._hold = tuple(hold)
        self._held = ""
        self._num_given = 0  # characters

    def add(self, ids: Sequence[int]) -> str:
        """What the new ids make final; may be empty."""
        self._held += "".join(self._stream.add(token) for token in ids)
        end = self._end_of_final()
        given, self._held = self._held[:end], self._held[end:]
        self._num_given += len(given)
        return given

    def finish(self, whole: str) -> str:
        """The rest, once the whole text is known."""
        return whole[self._num_given :]

    def _end_of_final(self) -> int:
        """Where the first string begins, or may begin with the next tokens."""
        found = [self._held.find(string) for string in self._hold if string in self._held]
        if found:
            return min(found)
        length = len(self._held)
        for begin in range(max(0, length - max(map(len, self._hold), default=0) + 1), length):
            if any(string.startswith(self._held[begin:]) for string in self._hold):
                return begin
        return length
