"""Finds in the log of a process why it ended."""

from __future__ import annotations

import pathlib
import re

_TAIL_BYTES = 1 << 20
_MAX_LINES = 200
MESSAGE = "error: "
_PLAIN_LINES = 20  # shown when there is no traceback
_START = re.compile(
    r"(Traceback \(most recent call last\):"
    r"|  \+ Exception Group Traceback \(most recent call last\):"
    r"|Fatal Python error: "
    r"|(Current thread|Thread) 0x.*\(most recent call first\):)"
)
_STACKS = ("Fatal Python error: ", "Current thread 0x", "Thread 0x")  # what faulthandler prints
_LINK = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def read(path: pathlib.Path, offset: int) -> str:
    """What was written after byte `offset`, at most its last megabyte."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, 2)
            file.seek(max(offset, end - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def last_traceback(text: str) -> str | None:
    """The last traceback with the causes that it names, None when there is none.

    A program may print a traceback and go on; the one that ended it is the last.
    """
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _START.match(line)]
    if not starts:
        return None
    first = starts.pop()
    while starts and _belong_together(lines[starts[-1] : first + 1]):
        first = starts.pop()
    return "\n".join(lines[first : first + _MAX_LINES])


def last_message(text: str) -> str | None:
    """The "error: ..." with which a process ended, None when it ended otherwise.

    Faults that people can mend are printed so, as the last words before the exit. Libraries may
    have printed a traceback of the same fault before, and complain once more while they exit.
    """
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(MESSAGE)]
    if not starts:
        return None
    for number in range(starts[-1] + 1, len(lines)):
        if _START.match(lines[number]):
            if not lines[number - 1].startswith("Exception ignored in"):
                return None  # it went on, and crashed
            return "\n".join(lines[starts[-1] : number - 1])
    return "\n".join(lines[starts[-1] :][:_MAX_LINES])


def _belong_together(lines: list[str]) -> bool:
    """Whether the block at the first line and the one that starts at the last are one report."""
    if lines[0].startswith(_STACKS):
        return lines[-1].startswith(_STACKS)
    return any(line in _LINK for line in lines)


def last_lines(text: str) -> str:
    """The end of a log without a traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_PLAIN_LINES:]) or "(the log is empty)"
