"""Starting interpreters: by forking a warm one, or by a command for each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
from typing import Protocol

from jaxrl_single.envs.sandbox import isolation as isolation_lib
from jaxrl_single.envs.sandbox import limits as limits_lib
from jaxrl_single.envs.sandbox import walls

_INTERPRETERS = 64  # of one process, that have different users


class Spawner(Protocol):
    """Starts and ends interpreters, by number."""

    def start(self, number: int, sock: socket.socket) -> None:
        """Starts an interpreter that will speak over `sock`; OSError if that cannot even begin."""
        ...

    def kill(self, number: int) -> None:
        """Ends an interpreter and all that it has started; nothing happens if it has ended."""
        ...

    def alive(self) -> bool:
        """False when all that was started so far is lost."""
        ...

    def close(self) -> None:
        """Ends everything."""
        ...


class ZygoteSpawner:
    """Forks of one warm Python, each behind walls of its own."""

    def __init__(
        self, limits: limits_lib.Limits, preload: tuple[str, ...] = (), *, own_code: bool = False
    ):
        """Nothing runs before the first `start`.

        Args:
          preload: modules that every interpreter finds loaded.
          own_code: this package can be imported.
        """
        self._limits = limits
        self._preload = preload
        self._own_code = own_code
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None

    def start(self, number: int, sock: socket.socket) -> None:
        """See `Spawner.start`."""
        if not self.alive():
            self._restart()
        order = json.dumps({"start": number}).encode()
        try:
            socket.send_fds(self._control, [order], [sock.fileno()])
        except OSError:  # it has just died
            self._restart()
            socket.send_fds(self._control, [order], [sock.fileno()])

    def kill(self, number: int) -> None:
        """See `Spawner.kill`."""
        if self._control is not None:
            with contextlib.suppress(OSError):  # a dead zygote has taken all with it
                self._control.send(json.dumps({"kill": number}).encode())

    def alive(self) -> bool:
        """See `Spawner.alive`."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """See `Spawner.close`."""
        if self._process is None:
            return
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None

    def _restart(self) -> None:
        self.close()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "fd": theirs.fileno(),
            "view": dataclasses.asdict(isolation_lib.view(own_code=self._own_code)),
            "limits": dataclasses.asdict(self._limits),
            "import_paths": isolation_lib.import_paths(own_code=self._own_code),
            "preload": list(self._preload),
        }
        with theirs:
            self._process = subprocess.Popen(
                isolation_lib.command("zygote", settings),
                env=isolation_lib.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # An interrupt of the terminal is for those who will close this in good order.
                start_new_session=True,
            )


class CommandSpawner:
    """A command for each interpreter."""

    def __init__(
        self, limits: limits_lib.Limits, seen: walls.View | None, *, own_code: bool = False
    ):
        """Makes a spawner.

        Args:
          seen: what is visible behind bubblewrap's walls; None = no isolation.
          own_code: this package can be imported.
        """
        self._limits = limits
        self._own_code = own_code
        self._prefix = []
        if seen is not None:
            self._prefix = isolation_lib.bubblewrap_prefix(seen, tmp_mb=limits.file_mb)
        self._seen = seen
        self._running: dict[int, tuple[subprocess.Popen, str | None]] = {}

    def start(self, number: int, sock: socket.socket) -> None:
        """See `Spawner.start`."""
        settings = {
            "fd": sock.fileno(),
            "limits": dataclasses.asdict(self._limits),
            "import_paths": isolation_lib.import_paths(own_code=self._own_code),
            "alone": self._seen is not None,
            # Different for all that live: process ids end at 2 ** 22.
            "number": os.getpid() * _INTERPRETERS + number % _INTERPRETERS,
        }
        # Behind walls there is a /tmp that goes with them.
        directory = None
        if self._seen is None:
            directory = tempfile.mkdtemp(prefix="python_tool_")
            if not self._own_code:
                settings["import_paths"] = [_link_packages(directory)]
        process = subprocess.Popen(
            [*self._prefix, *isolation_lib.command("worker", settings, self._seen)],
            env=isolation_lib.ENVIRONMENT | {"HOME": directory or "/tmp"},
            cwd=directory or "/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[sock.fileno()],
            start_new_session=True,
        )
        self._running[number] = (process, directory)

    def kill(self, number: int) -> None:
        """See `Spawner.kill`; without isolation, what has left the process group lives on."""
        process, directory = self._running.pop(number, (None, None))
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)

    def alive(self) -> bool:
        """See `Spawner.alive`; here each lives by itself."""
        return True

    def close(self) -> None:
        """See `Spawner.close`."""
        for number in list(self._running):
            self.kill(number)


def make(
    isolation: isolation_lib.Isolation,
    limits: limits_lib.Limits,
    preload: tuple[str, ...] = (),
    *,
    own_code: bool = False,
) -> Spawner:
    """The spawner of an isolation; `preload` counts under "namespaces" only."""
    if isolation.name == "namespaces":
        return ZygoteSpawner(limits, preload, own_code=own_code)
    seen = isolation_lib.view(own_code=own_code) if isolation.name == "bubblewrap" else None
    return CommandSpawner(limits, seen, own_code=own_code)


def _link_packages(directory: str) -> str:
    """A folder, within one, of what code may import."""
    folder = pathlib.Path(directory, ".packages")
    folder.mkdir()
    for package in isolation_lib.packages():
        (folder / package.name).symlink_to(package)
    return str(folder)
