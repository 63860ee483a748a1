"""Tools, checks and rewards as a user would write them, for test_own_code.py."""

import sys
import time
from typing import Literal


def look_up(word: str, count: int = 1, order: Literal["up", "down"] | None = None) -> str:
    """Looks a word up
    in the dictionary.

    Args:
      word: to look for.
      count (int): of the answers.
    """
    if word == "stop":
        raise StopIteration("no more")
    if word == "exit":
        sys.exit(3)
    return f"{word} x {count}"


async def look_up_async(word: str) -> list:
    return [word, 1]


def starts_alike(task, answer):
    return float(answer[:1] == task.answer[:1])


async def half(task, answer):
    return 0.5


def short_is_better(task, answer, score):
    return score - 0.01 * len(answer or "")


def gives_nothing(task, answer, score=None):
    return None


def sleeps(task, answer):
    time.sleep(0.2)
    return 1.0


def takes_nothing():
    return 1.0


def untyped(word):
    return word


def typed_oddly(word: bytes):
    return word


NO_FUNCTION = 3
