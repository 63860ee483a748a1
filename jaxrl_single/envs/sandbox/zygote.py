"""A warm Python that forks sandboxed interpreters on request. Standard library only.

Orders come over a socket that keeps messages apart, as JSON: {"start": number} with a descriptor,
the interpreter's own socket; {"kill": number}. When that socket closes, everything ends.

    zygote --- keeper (outside the walls, waits) --- interpreter (process 1 behind the walls)

Killing the keeper kills the interpreter, and with process 1 all that it has started.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import platform
import select
import signal
import socket
import sys
from typing import Any

from jaxrl_single.envs.sandbox import limits as limits_lib
from jaxrl_single.envs.sandbox import syscalls, walls, worker

_MESSAGE_BYTES = 4096


class Zygote:
    """Starts and ends interpreters."""

    def __init__(self, control: socket.socket, limits: limits_lib.Limits, view: walls.View):
        self._control = control
        self._limits = limits
        self._view = view
        self._keepers: dict[int, int] = {}  # number of the interpreter -> process id
        signal.signal(signal.SIGCHLD, self._reap)

    def serve(self) -> None:
        """Obeys until the other end closes."""
        while True:
            data, descriptors, *_ = socket.recv_fds(self._control, _MESSAGE_BYTES, 1)
            if not data:
                break
            order = json.loads(data)
            if "start" in order:
                self._start(order["start"], descriptors[0])
            else:
                self._kill(order["kill"])
        for number in list(self._keepers):
            self._kill(number)

    def _start(self, number: int, descriptor: int) -> None:
        sock = socket.socket(fileno=descriptor)
        me = os.getpid()
        # A keeper that ends at once must not be reaped before its number is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            self._control.close()
            _keep(sock, self._limits, self._view, parent=me)
        self._keepers[number] = pid
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        sock.close()

    def _kill(self, number: int) -> None:
        pid = self._keepers.get(number)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self, *_: Any) -> None:
        for number, pid in list(self._keepers.items()):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._keepers[number]


def _keep(sock: socket.socket, limits: limits_lib.Limits, view: walls.View, *, parent: int) -> None:
    """The keeper, and in its child the interpreter; never returns."""
    try:
        number = os.getpid()
        walls.leave()
        walls.die_with_parent()  # after it, because new rights undo this
        if os.getppid() != parent:
            os._exit(1)
        watched, held = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(held)
            _be_interpreter(sock, limits, view, number, watched)
        sock.close()
        os.close(watched)
        os.waitpid(pid, 0)
    except BaseException as error:
        _report(sock, error)
    os._exit(0)


def _be_interpreter(
    sock: socket.socket, limits: limits_lib.Limits, view: walls.View, number: int, watched: int
) -> None:
    """Goes behind the walls and runs code there; never returns."""
    try:
        os.setsid()
        walls.build(view, tmp_mb=limits.file_mb)
        walls.give_up_rights(number)
        if select.select([watched], [], [], 0)[0]:
            os._exit(1)  # the keeper ended before its end would have ended this
        os.close(watched)
        _find_again(view)
        limits_lib.apply(limits, count_processes=True)
        worker.Worker(sock, output_chars=limits.output_chars, alone=True).serve()
    except BaseException as error:
        _report(sock, error)
    os._exit(0)


def _find_again(view: walls.View) -> None:
    """Python and its modules, where they are seen from now on."""
    python = view.inside(sys.executable)
    if python != sys.executable:  # its library may be looked for at its old place only
        os.environ["LD_LIBRARY_PATH"] = str(pathlib.Path(python).parents[1] / "lib")
    sys.executable = python
    sys.path[:] = map(view.inside, sys.path)
    sys.path_importer_cache.clear()
    for module in list(sys.modules.values()):
        if isinstance(getattr(module, "__path__", None), list):
            module.__path__ = list(map(view.inside, module.__path__))


def _report(sock: socket.socket, error: BaseException) -> None:
    with contextlib.suppress(OSError):
        worker.send(sock, {"failed": f"{type(error).__name__}: {error}"})


def main(text: str) -> None:
    """Serves with the settings of `spawners.ZygoteSpawner` as JSON."""
    settings = json.loads(text)
    sys.path += settings["import_paths"]
    for name in settings["preload"]:
        importlib.import_module(name)
    syscalls.build(platform.machine())  # once, and not in each interpreter
    control = socket.socket(fileno=settings["fd"])
    view = walls.View(**settings["view"])
    Zygote(control, limits_lib.Limits(**settings["limits"]), view).serve()
