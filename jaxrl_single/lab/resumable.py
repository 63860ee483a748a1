"""Files of JSON lines that a rerun goes on with: OUTPUT, and OUTPUT.settings.json beside it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from jaxrl_single import workdir

Report = Callable[[int, int, str], None]  # (done, of, a line for people)


class SettingsConflict(ValueError):
    """The output belongs to a run with other settings; the message says which."""


class InUse(ValueError):
    """Another process is writing the output."""


@contextlib.contextmanager
def claimed(output: pathlib.Path, settings: dict[str, Any]) -> Iterator[None]:
    """While an output is written: by one process, with the settings that are noted beside it.

    Raises:
      SettingsConflict: the output exists and was made with others.
      InUse: another process is writing it.
      workdir.CannotWrite: the directory is not writable.
    """
    path = _beside(output)
    if output.exists() and not path.exists():
        raise SettingsConflict(
            f"{output} exists, and no {path.name} says how it was made; choose another output"
        )
    try:
        file = path.open("a")
    except OSError as error:
        raise workdir.CannotWrite(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(
                f"another process is writing {output}; wait for it or choose another output"
            ) from None
        if output.exists():
            _check(output, workdir.read_json(path), settings)
        else:
            file.truncate(0)
            file.write(json.dumps(settings) + "\n")
            file.flush()
        yield


def _check(output: pathlib.Path, earlier: dict[str, Any], settings: dict[str, Any]) -> None:
    odd = [
        f"{name} was {earlier.get(name)!r}, now {settings.get(name)!r}"
        for name in sorted({*earlier, *settings})
        if earlier.get(name) != settings.get(name)
    ]
    if odd:
        raise SettingsConflict(
            f"{output} was made with other settings: {'; '.join(odd)}; give the same ones to go on "
            "with it, or choose another output. (Checkpoints are known by their content, wherever "
            "they lie.)"
        )


def earlier_setting(output: pathlib.Path, name: str, new: Any) -> Any:
    """A setting that a run keeps from its beginning; `new` where the output does not exist yet."""
    if not output.exists():
        return new
    return (workdir.read_json(_beside(output)) or {}).get(name)


def _beside(output: pathlib.Path) -> pathlib.Path:
    return output.with_name(output.name + ".settings.json")


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak_rss_mb() -> float:
    """Most memory that this process has had so far, 10^6 bytes."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # ru_maxrss begins with what the parent had when it started this process
        lines = status.read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM:")) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
