"""What a message says, without what its model thinks between <think> and </think>. No jax.

The first thought may have begun in the prompt: then its end alone is in the message. A message
that ends within a thought says nothing at all. Tags within a call of a tool are part of the call.
Each character is looked at a bounded number of times, whatever the text.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

OPEN, CLOSE = "<think>", "</think>"


@dataclasses.dataclass(frozen=True)
class Found:
    """A call, or what means to be one.

    Attributes:
      start, end: its place in the message; a malformed one has no end (the message's).
      call: what it calls, None if malformed.
      fault: what is wrong with it, in words for the model; empty if nothing is.
    """

    start: int
    end: int
    call: Any = None
    fault: str = ""


class Calls(Protocol):
    """Finds the calls of a text. Together the readings of a text take linear time."""

    def find(self, start: int) -> int:
        """Where the first call at or after `start` may begin; -1 = nowhere."""
        ...

    def read(self, start: int, after: int) -> Found | None:
        """What begins at a place that `find` gave.

        Returns:
          a call; or one with a fault, or neither: text; None = text, and so is all that follows.

        Args:
          after: where the call before it ends, -1 if there is none.
        """
        ...


@dataclasses.dataclass
class Message:
    """A message taken apart.

    Attributes:
      calls: in order, at most the last malformed: what follows one is not looked at.
      thoughts: from where to where they go.
      said: from where to where the other text goes.
      unfinished: the message ends within a thought.
    """

    calls: list[Found] = dataclasses.field(default_factory=list)
    thoughts: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    said: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    unfinished: bool = False


def take_apart(text: str, calls: Calls | None, *, thinking: bool = False) -> Message:
    """Tells calls, thoughts and other text of a message.

    Args:
      calls: of the text; None = there are none.
      thinking: the prompt has begun a thought.
    """
    if thinking and not text.lstrip().startswith(OPEN):
        close = text.find(CLOSE)
        if close < 0:
            return _unfinished(text)
        place: int | None = close + len(CLOSE)
    else:
        found, place = _walk(text, 0, calls, stray=True)
        if place is None:
            return found
    rest, _ = _walk(text, place, calls, stray=False)
    if rest.unfinished:
        return rest
    return dataclasses.replace(rest, thoughts=[(0, place), *rest.thoughts])


def begun(prompt: str) -> bool:
    """Whether a prompt ends within a thought, as templates of models that always think do."""
    return prompt.rstrip().endswith(OPEN)


def said(text: str) -> str:
    """A message without its thoughts, of a model that calls nothing."""
    return "".join(text[start:end] for start, end in take_apart(text, None).said)


def _walk(text: str, start: int, calls: Calls | None, *, stray: bool) -> tuple[Message, int | None]:
    """From `start` on; with `stray` only up to a </think> that ends what began in the prompt.

    Returns:
      what was found, and where the thought of the prompt ends, None if there is none.
    """
    found, opening = Message(), -2
    while True:
        if calls is None:
            opening = -1
        elif opening != -1 and opening < start:
            opening = calls.find(start)
        limit = len(text) if opening < 0 else opening
        think = text.find(OPEN, start, limit)
        gap = limit if think < 0 else think
        if stray and (close := text.find(CLOSE, start, gap)) >= 0:
            return found, close + len(CLOSE)
        found.said.append((start, gap))
        if think >= 0:
            end = text.find(CLOSE, think)
            if end < 0:
                return _unfinished(text), None
            start = end + len(CLOSE)
            found.thoughts.append((think, start))
        elif calls is None or opening < 0:
            return found, None
        else:
            start, opening = _read(found, calls, opening)
            if found.calls and found.calls[-1].fault:
                return _after_fault(text, limit, found) if stray else (found, None)


def _read(found: Message, calls: Calls, opening: int) -> tuple[int, int]:
    """Reads what begins there; returns where to go on, and -1 if no further calls come."""
    call = calls.read(opening, found.calls[-1].end if found.calls else -1)
    if call is None:
        return opening, -1
    if call.call is None and not call.fault:
        found.said.append((call.start, call.end))
    else:
        found.calls.append(call)
    return call.end, opening


def _after_fault(text: str, start: int, found: Message) -> tuple[Message, int | None]:
    """What is no call may be the rest of a thought: then its end comes before another begins."""
    close = text.find(CLOSE, start)
    if close < 0 or text.find(OPEN, start, close) >= 0:
        return found, None
    return found, close + len(CLOSE)


def _unfinished(text: str) -> Message:
    return Message(thoughts=[(0, len(text))], unfinished=True)
