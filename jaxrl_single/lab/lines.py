"""Lines of a text file that a user gives to a command."""

from __future__ import annotations

import os
from collections.abc import Iterator

_GZIP = b"\x1f\x8b"


def numbered(path: os.PathLike[str] | str) -> Iterator[tuple[int, str]]:
    """Numbers from 1 and lines of a file in UTF-8, without a byte order mark.

    Raises:
      ValueError: a line is not UTF-8; the message names the file and the line.
      OSError: the file cannot be read.
    """
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if number == 1 and line.startswith(_GZIP):
                raise ValueError(f"{path}: packed by gzip; unpack it first")
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte {error.start + 1} is {line[error.start]:#04x}"
                raise ValueError(
                    f"{path}, line {number}: not UTF-8 ({byte}); convert the file to UTF-8 first"
                ) from error
