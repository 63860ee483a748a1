"""The text of a growing list of token ids, as soon as no further token can change it."""

from __future__ import annotations

from collections.abc import Sequence

_UNFINISHED = "\ufffd"  # what decoders show for the first bytes of a character


class TextStream:
    """Gives text away piece by piece; the pieces, joined, are a prefix of the whole text.

    Held back are bytes that are no whole character yet, and an ending that may become one of the
    stop strings.
    """

    def __init__(self, text, *, keep_special: bool, stop: Sequence[str]):
        self._text = text
        self._keep_special = keep_special
        self._stop = stop
        self._ids: list[int] = []
        # The ids from `_context` on are decoded together, because a token's text may depend on the
        # one before it (leading spaces); those before `_decoded` have been turned into text.
        self._context = 0
        self._decoded = 0
        self._held = ""
        self.num_given = 0

    def add(self, ids: Sequence[int]) -> str:
        """What the new ids make final; may be empty."""
        self._ids.extend(ids)
        known = self._decode(self._ids[self._context : self._decoded])
        grown = self._decode(self._ids[self._context :])
        if grown.endswith(_UNFINISHED):
            return ""
        self._held += grown[len(known) :]
        self._context, self._decoded = self._decoded, len(self._ids)
        keep = self._num_kept()
        given, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        self.num_given += len(given)
        return given

    def finish(self, whole: str) -> str:
        """The rest of the whole text, once it is known."""
        return whole[self.num_given :]

    def _decode(self, ids: list[int]) -> str:
        return self._text.decode(ids, keep_special=self._keep_special)

    def _num_kept(self) -> int:
        """Length of the longest ending that begins a stop string, or from a stop string on."""
        for stop in self._stop:
            at = self._held.find(stop)
            if at >= 0:
                return len(self._held) - at
        longest = min(len(self._held), max(map(len, self._stop), default=1) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
