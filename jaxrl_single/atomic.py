"""Files and directories that come whole or not at all: under a temporary name first. No jax."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pathlib
import shutil
import socket
from collections.abc import Iterator

PREFIX = f".tmp-{socket.gethostname()}-"  # of this machine: pids mean nothing elsewhere
_counter = itertools.count()


@contextlib.contextmanager
def replacing(path: os.PathLike[str] | str) -> Iterator[pathlib.Path]:
    """A name beside `path` for a file or a directory, which becomes `path` at the end of the block.

    A block that fails leaves `path` as it was. What a killed one left of it is removed. What is no
    file, such as /dev/null, is written in place.

    Raises:
      FileNotFoundError: there is no directory to write in.
    """
    path = pathlib.Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(path.parent))
    if path.exists() and not path.is_file():
        yield path
        return
    remove_temporaries(path.parent, of=path.name)
    writing = temporary(path)
    try:
        yield writing
        os.replace(writing, path)
    finally:
        _remove(writing)


def remove_temporaries(directory: pathlib.Path, of: str | None = None) -> list[pathlib.Path]:
    """Removes what writers that were killed left directly in `directory`; `of`: of this name."""
    removed = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        owner, _, rest = path.name.removeprefix(PREFIX).partition("-")
        if not path.name.startswith(PREFIX) or of not in (None, rest.partition("-")[2]):
            continue
        if owner.isdecimal() and not is_alive(int(owner)):
            _remove(path)
            removed.append(path)
    return removed


def temporary(path: pathlib.Path) -> pathlib.Path:
    """A new name beside `path`, for what is then renamed to `path`."""
    return path.with_name(f"{PREFIX}{os.getpid()}-{next(_counter)}-{path.name}")


def is_alive(pid: int) -> bool:
    """True while a process of this number lives on this machine; it may be another by now."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
