"""What a process does at its start so that its supervisor can care for it. No jax."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pathlib
import signal
import sys
import threading
import time

from jaxrl_single import workdir

PARENT_PID = "JAXRL_SINGLE_PARENT_PID"  # environment variable that the supervisor sets
STACKS_SIGNAL = signal.SIGUSR1  # prints the stacks of all threads into the log
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Heartbeat:
    """A file whose modification time says that the loop of a process still turns.

    Call `beat` in every turn of the loop: it touches the file at most once in `every_s`.
    """

    def __init__(self, path: pathlib.Path, *, every_s: float = 1.0):
        self._path = path
        self._every_s = every_s
        self._last = -float("inf")
        self.beat()

    def beat(self) -> None:
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._path.touch()
            self._last = now


def start(paths: workdir.Workdir, name: str) -> Heartbeat:
    """Prepares this process, `name` being its name in logs/.

    It ends with its parent; a crash of the interpreter and STACKS_SIGNAL print stacks into the
    log. Does nothing but the heartbeat when no supervisor started this process.
    """
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
    if PARENT_PID in os.environ:
        exit_with_parent(int(os.environ[PARENT_PID]))
    paths.logs.mkdir(parents=True, exist_ok=True)
    return Heartbeat(paths.heartbeat(name))


def exit_with_parent(parent_pid: int, *, interval_s: float = 1.0) -> None:
    """Ends this process and its process group when the parent is gone, however it went.

    Linux sends SIGKILL at once (prctl, which works although a thread holds the interpreter); a
    thread looks every `interval_s` on every system, and covers a parent that died before this
    call. Nothing is saved: the checkpoints are whole at any moment, and a rerun may begin now.
    A process that starts others must see to them in the same way; a rerun ends what is left.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    threading.Thread(
        target=_watch_parent, args=(parent_pid, interval_s), name="watch-parent", daemon=True
    ).start()


class StopRequest:
    """Whether this process was asked to stop. The loop asks it, saves and returns."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the first one that came

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """As shells count: 130 after Ctrl-C, 143 after SIGTERM; 0 without a request."""
        return 0 if self.signal is None else 128 + self.signal


def stop_on_signals() -> StopRequest:
    """Takes SIGTERM and SIGINT as a request to stop; call it in the main thread."""
    request = StopRequest()

    def take(number: int, frame: object) -> None:
        request.signal = request.signal or number

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, take)
    return request


def _watch_parent(parent_pid: int, interval_s: float) -> None:
    while os.getppid() == parent_pid:
        time.sleep(interval_s)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
