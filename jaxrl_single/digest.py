"""SHA-256 of contents; that of a large file is computed once and remembered. No jax.

What was computed lies in ~/.cache/jaxrl_single/digests.json, by the file's path, inode, size and
times. The time of the last change of the inode is among them, which copies that keep the time of
modification (cp -p, rsync -t) cannot set back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import time
from typing import Any

from jaxrl_single import atomic

_LARGE_BYTES = 1 << 20  # smaller files are read at every start
_SETTLED_S = 2.0  # a file may change twice within one tick of its clock: younger ones are read
_SHOWN = 12  # hexadecimal digits


def of_file(path: os.PathLike[str] | str, *, begin: int = 0) -> str:
    """Of the bytes of a file from `begin` on.

    Raises:
      OSError: it cannot be read.
    """
    path = pathlib.Path(path)
    found = path.stat()
    if found.st_size < _LARGE_BYTES:
        return _read(path, begin)
    name = f"{path.resolve()} {begin}"
    state = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    known = _known().get(name)
    if known is not None and known["state"] == state:
        return known["sha256"]
    sha256 = _read(path, begin)
    if time.time() - max(found.st_mtime, found.st_ctime) > _SETTLED_S:
        _remember(name, {"state": state, "sha256": sha256})
    return sha256


def of_json(value: Any) -> str:
    """Of a value of JSON types, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def short(digest: str) -> str:
    """For people."""
    return digest[:_SHOWN] if len(digest) == hashlib.sha256().digest_size * 2 else digest


def _read(path: pathlib.Path, begin: int) -> str:
    with path.open("rb") as file:
        file.seek(begin)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cache() -> pathlib.Path:
    return pathlib.Path.home() / ".cache" / "jaxrl_single" / "digests.json"


def _known() -> dict[str, Any]:
    try:
        found = json.loads(_cache().read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(name: str, record: dict[str, Any]) -> None:
    """A cache that cannot be written costs time and nothing else."""
    with contextlib.suppress(OSError):
        _cache().parent.mkdir(parents=True, exist_ok=True)
        there = {**_known(), name: record}
        # Files that are gone would stay for ever.
        kept = {key: one for key, one in there.items() if os.path.exists(key.rpartition(" ")[0])}
        with atomic.replacing(_cache()) as writing:
            writing.write_text(json.dumps(kept))
