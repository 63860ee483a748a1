"""The text of sampled tokens as they come, and the stop strings in it. No jax.

A token is not a piece of text: a character may need several tokens, and some tokenizers write a
token differently behind another one. So text is decoded in a window that begins a little before
the new tokens, and what ends in the middle of a character waits for the tokens that complete it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

TextOf = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"  # what decoders write for bytes that are no character
_MOST_INCOMPLETE = 3  # so many at the end may still become one: a character of UTF-8 has 4 bytes
_LONGEST_WINDOW = 16  # tokens, of bytes that are no text


class TextStream:
    """Turns tokens into text one by one; the pieces together are the text of all of them.

    At the end of a turn, the text of an incomplete character is missing: `rest` gives it.
    """

    def __init__(self, text_of: TextOf):
        """text_of: the text of tokens; a replacement character at its end is an incomplete one."""
        self._text_of = text_of
        self._tokens: list[int] = []  # the window: some whose text was given, and the new ones
        self._num_old = 0
        self._given = ""  # the part of the window's text that was given

    def add(self, token: int) -> str:
        """The text that this token completes; "" in the middle of a character."""
        self._tokens.append(token)
        text = self._text_of(self._tokens)
        end = _end_of_certain(text)
        piece, self._given = text[len(self._given) : end], text[:end]
        if end == len(text):
            self._move(self._tokens[self._num_old :])
        elif len(self._tokens) - self._num_old > _LONGEST_WINDOW:
            self._move(self._tokens[-_MOST_INCOMPLETE:])
        return piece

    def rest(self) -> str:
        """The text of an incomplete character at the end of the turn."""
        return self._text_of(self._tokens)[len(self._given) :]

    def _move(self, tokens: list[int]) -> None:
        """Goes on with these, of which nothing is new, as the window."""
        self._tokens, self._num_old = tokens, len(tokens)
        text = self._text_of(tokens)
        self._given = text[: _end_of_certain(text)]


class StopStrings:
    """Looks for a turn's stop strings in the text of its new tokens."""

    def __init__(self, strings: Sequence[str], text_of: TextOf):
        """strings: not empty, none of them ""; text_of: see `TextStream`."""
        self._strings = tuple(strings)
        self._stream = TextStream(text_of)
        self._tail_length = max(map(len, self._strings)) - 1  # may hold the beginning of one
        self._tail = ""

    def find(self, tokens: Sequence[int]) -> tuple[int, str] | None:
        """Reads the turn's next tokens.

        Returns:
          (how many of them belong to the turn: the last one completes a stop string, the string);
          None if there is no stop string yet. Of strings that one token completes, the one that
          begins first in the text, and of those the first in the request. After a string was found
          nothing more may be read.
        """
        for count, token in enumerate(tokens, start=1):
            text = self._tail + self._stream.add(token)
            found = [(text.find(string), string) for string in self._strings if string in text]
            if found:
                return count, min(found, key=lambda place: place[0])[1]
            self._tail = text[max(0, len(text) - self._tail_length) :]
        return None


def _end_of_certain(text: str) -> int:
    """So many characters do not change whatever follows."""
    return max(len(text.rstrip(_INCOMPLETE)), len(text) - _MOST_INCOMPLETE)
