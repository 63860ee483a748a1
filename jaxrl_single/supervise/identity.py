"""Which process is meant: a pid alone may belong to somebody else by now."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
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


def group(leader: dict, environment: dict[str, str]) -> list[dict]:
    """Records of the living processes of a group that `describe` recorded the leader of.

    A leader that is alive is known by its start time. The rest of the group may outlive it, and
    the number may by then belong to another group; ours were started with `environment`, which
    only Linux can tell: elsewhere the rest is left alone.
    """
    members = [leader] if is_alive(leader) else []
    wanted = {f"{name}={value}".encode() for name, value in environment.items()}
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        try:
            ours = os.getpgid(pid) == leader["pid"] and wanted <= set(
                path.read_bytes().split(b"\0")
            )
        except OSError:  # gone by now, or somebody else's
            continue
        if ours and pid != leader["pid"]:
            members.append(describe(pid))
    return members


def kill(record: dict) -> None:
    """SIGKILL to the very process that was recorded; one that is gone is fine."""
    if is_alive(record):
        with contextlib.suppress(ProcessLookupError):
            os.kill(record["pid"], signal.SIGKILL)


def kill_group(pid: int) -> None:
    """SIGKILL to the process group that `pid` leads; a group that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


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
