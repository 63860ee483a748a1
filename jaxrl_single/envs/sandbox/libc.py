"""Calls of the C library that Python has no name for. Standard library only."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object, known_as: str = "") -> None:
    """Calls a function that returns 0 when all is well.

    Args:
      name: of the function.
      arguments: as ctypes takes them.
      known_as: what the error calls it; `name` when empty.

    Raises:
      OSError: it returned anything else; with the system's reason.
    """
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{known_as or name}: {os.strerror(number)}")


def syscall(number: int, *arguments: object) -> int:
    """Makes a system call and returns what it returns: -1 when it fails."""
    return _libc.syscall(number, *arguments)
