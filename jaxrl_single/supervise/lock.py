"""One run per workdir at a time, and what a run that was killed has left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from jaxrl_single import atomic, workdir
from jaxrl_single.supervise import child, identity

_PROBE_S = 1.0  # `workdir.is_running` holds the lock for an instant; wait so long for it


class WorkdirBusy(RuntimeError):
    """Another run holds this workdir; the message names its process and what to do."""


@contextlib.contextmanager
def hold(paths: workdir.Workdir) -> Iterator[list[str]]:
    """Holds the workdir while the block runs, after ending what a killed run has left.

    The lock goes with the process, however it ends, so it never needs to be removed by hand.

    Yields:
      One line for people per thing that was cleaned up.

    Raises:
      WorkdirBusy: a living run holds it.
      workdir.CannotWrite: the lock cannot be made.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise workdir.CannotWrite(paths.lock, error) from error
    try:
        _acquire(descriptor, paths)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield reclaim(paths)
    finally:
        os.close(descriptor)


def check_free(paths: workdir.Workdir) -> None:
    """Raises WorkdirBusy while a living run holds the workdir; makes and changes nothing."""
    if paths.lock.exists() and workdir.is_running(paths):
        raise _busy(paths, paths.lock.read_text().strip())


def reclaim(paths: workdir.Workdir) -> list[str]:
    """Kills processes of a dead run that still live, removes its temporary files.

    Call it with the lock held: then the parent of those processes is dead.
    """
    done = []
    record = workdir.read_json(paths.processes) or {}
    for name, left in record.get("children", {}).items():
        members = identity.group(left, {child.PARENT_PID: str(record["parent"]["pid"])})
        for member in members:
            identity.kill(member)
        stubborn = [m["pid"] for m in members if not identity.wait_until_gone(m, timeout_s=10.0)]
        if stubborn:
            raise WorkdirBusy(
                f"{name} of an earlier run in {paths.root} does not die: processes {stubborn}; "
                "end them, then run the same command again"
            )
        if members:
            pids = ", ".join(str(member["pid"]) for member in members)
            done.append(f"ended what an earlier run left of its {name}: {pids}")
    for directory in (paths.root, paths.logs, paths.tickets, paths.samplers):
        for path in atomic.remove_temporaries(directory):
            done.append(f"removed the half-written {path.relative_to(paths.root)}")
    for path in paths.logs.glob("*.heartbeat"):
        path.unlink(missing_ok=True)
    return done


def _acquire(descriptor: int, paths: workdir.Workdir) -> None:
    deadline = time.monotonic() + _PROBE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _busy(paths, os.read(descriptor, 32).decode().strip()) from None
            time.sleep(0.05)


def _busy(paths: workdir.Workdir, pid: str) -> WorkdirBusy:
    pid = pid or "of unknown number"
    return WorkdirBusy(
        f"{paths.root} is in use by a run, process {pid}. Wait for it, stop it (kill {pid}: it "
        "saves a checkpoint), or choose another --workdir"
    )
