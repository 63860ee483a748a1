"""Files of JSON lines that a rerun goes on with: OUTPUT, and OUTPUT.settings.json beside it."""

from __future__ import annotations

import pathlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from jaxrl_single import workdir

Report = Callable[[int, int, str], None]  # (done, of, a line for people)


class SettingsConflict(ValueError):
    """The output belongs to a run with other settings; the message says which."""


def claim(output: pathlib.Path, settings: dict[str, Any]) -> None:
    """Notes the settings beside a new output.

    Raises:
      SettingsConflict: the output exists and was made with others.
      workdir.CannotWrite: the directory is not writable.
    """
    path = _beside(output)
    if not output.exists():
        workdir.write_json(path, settings)
        return
    earlier = workdir.read_json(path)
    if earlier is None:
        raise SettingsConflict(
            f"{output} exists, and no {path.name} says how it was made; choose another output"
        )
    odd = [
        f"{name} was {earlier.get(name)!r}, now {settings.get(name)!r}"
        for name in sorted({*earlier, *settings})
        if earlier.get(name) != settings.get(name)
    ]
    if odd:
        raise SettingsConflict(
            f"{output} was made with other settings: {'; '.join(odd)}; "
            "give the same ones to go on with it, or choose another output"
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
