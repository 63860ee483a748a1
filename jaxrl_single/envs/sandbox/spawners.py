"""Starting interpreters: by forking a warm one, or by a command for each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from typing import Protocol

from jaxrl_single.envs.sandbox import isolation as isolation_lib
from jaxrl_single.envs.sandbox import limits as limits_lib


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

    def __init__(self, limits: limits_lib.Limits, prefix: list[str], *, own_code: bool = False):
        """Makes a spawner.

        Args:
          prefix: words in front of the command, which isolate it; empty = no isolation.
          own_code: this package can be imported.
        """
        self._limits = limits
        self._own_code = own_code
        self._prefix = prefix
        self._running: dict[int, tuple[subprocess.Popen, str | None]] = {}

    def start(self, number: int, sock: socket.socket) -> None:
        """See `Spawner.start`."""
        settings = {
            "fd": sock.fileno(),
            "limits": dataclasses.asdict(self._limits),
            "import_paths": isolation_lib.import_paths(own_code=self._own_code),
            "alone": bool(self._prefix),
        }
        # Behind walls there is a /tmp that goes with them.
        directory = None if self._prefix else tempfile.mkdtemp(prefix="python_tool_")
        process = subprocess.Popen(
            [*self._prefix, *isolation_lib.command("worker", settings)],
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
    prefix = []
    if isolation.name == "bubblewrap":
        seen = isolation_lib.view(own_code=own_code)
        prefix = isolation_lib.bubblewrap_prefix(seen, tmp_mb=limits.file_mb)
    return CommandSpawner(limits, prefix, own_code=own_code)
