"""Which process is meant: a pid alone may belong to somebody else by now."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time


def start_time(pid: int) -> str | None:
    """When a living process began, in a form to compare only; None when it is gone.

    A zombie is gone: it does nothing any more, its parent has just not asked.
    """
    if not pathlib.Path("/proc/self/stat").exists():
        return _start_time_by_ps(pid)
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything; the fields after it are fixed (proc(5)).
    fields = stat.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    return None if state in ("Z", "X") else ticks


def describe(pid: int) -> dict[str, int | str | None]:
    """{"pid", "start_time"}, as `is_alive` takes it."""
    return {"pid": pid, "start_time": start_time(pid)}


def is_alive(record: dict) -> bool:
    """True while the very process that `describe` recorded lives."""
    return record["start_time"] is not None and start_time(record["pid"]) == record["start_time"]


def kill_group(pid: int, number: int) -> None:
    """Sends a signal to the process group that `pid` leads; a group that is gone is fine."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def wait_until_gone(record: dict, timeout_s: float) -> bool:
    """Waits for the end of a process that need not be a child; False when it outlives it."""
    deadline = time.monotonic() + timeout_s
    while is_alive(record):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _start_time_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return None if not text or text.startswith("Z") else text.partition(" ")[2].strip()
