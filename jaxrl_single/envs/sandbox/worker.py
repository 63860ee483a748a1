"""The program inside a sandbox: runs pieces of code that come over a socket.

Standard library only, for nothing else may be visible in there. A message is 4 bytes, its length,
big-endian, then JSON:

    it says     {"ready": true}, or {"failed": why}
    it is told  {"run": number, "code": text, "timeout_s": seconds, "seed": number}
    it says     {"run": number, "output": text, "error": text, "outcome": "done", "error" or
                "timeout"}

The code shares this process: whatever it does to it, it does to itself. What ordinary code may do,
such as raising what cannot be printed, is met here; what it breaks on purpose, it loses. The other
end believes nothing but the form of a message and keeps its own clock.
"""

from __future__ import annotations

import _signal
import ast
import contextlib
import ctypes
import io
import json
import linecache
import os
import random
import signal
import socket
import struct
import sys
import traceback
from typing import Any

from jaxrl_single.envs.sandbox import limits as limits_lib
from jaxrl_single.envs.sandbox import syscalls, walls

_PR_SET_PDEATHSIG = 1
_INIT_AND_CHILD = 2  # process ids of the first two in a namespace
_TICK_S = 0.2  # after the deadline the alarm comes so often, in case one was caught by the code
_OWN_PACKAGE = "jaxrl_single"
_MAX_FRAMES = 8  # of a traceback
_OOM_SCORE = 1000  # what the system should end first when memory runs out
# Kept here, because the code may replace those of the module.
_SIG_BLOCK, _SIG_UNBLOCK = signal.SIG_BLOCK, signal.SIG_UNBLOCK
_encode, _decode = json.JSONEncoder().encode, json.JSONDecoder().decode
# The one of the module `signal` names each signal of the mask it returns, which takes longer than a
# whole call.
_set_mask, _every_signal = _signal.pthread_sigmask, frozenset(map(int, signal.valid_signals()))


class _OutOfTime(BaseException):
    """The deadline has passed. Not an Exception, so that `except Exception` lets it through."""


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Writes one message."""
    data = _encode(message).encode()
    sock.sendall(struct.pack(">I", len(data)) + data)


class Worker:
    """An interpreter whose variables live from run to run."""

    def __init__(self, sock: socket.socket, *, output_chars: int, alone: bool):
        """Takes the place of the program's standard streams.

        Args:
          sock: to the other end.
          output_chars: of an answer.
          alone: every other process that can be seen here belongs to the code.

        Raises:
          RuntimeError: it says alone and is not: then it would end the processes of others.
          OSError: its memory can't be bounded, see `syscalls.refuse`.
        """
        if alone and os.getpid() > _INIT_AND_CHILD:
            raise RuntimeError(f"process {os.getpid()} is not in a namespace of its own")
        self._sock = sock
        self._output_chars = output_chars
        self._alone = alone
        self._capture = os.memfd_create("output")
        if alone:
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(_OOM_SCORE))
            syscalls.leave_keyring()
            syscalls.refuse()
        self._error = ""
        self._pid = os.getpid()
        self._variables: dict[str, Any] = {"__name__": "__main__"}
        self._runs = 0
        self._seeded = False
        self._recursion_limit = sys.getrecursionlimit()

    def serve(self) -> None:
        """Answers until the other end closes."""
        for name in [name for name in sys.modules if name.partition(".")[0] == _OWN_PACKAGE]:
            del sys.modules[name]  # the code shall not find them
        # A signal that comes while no code runs waits for the next run, and is its problem.
        _set_mask(_SIG_BLOCK, _every_signal)
        send(self._sock, {"ready": True})
        while (message := self._receive()) is not None:
            if not self._seeded:
                random.seed(message["seed"])
                self._seeded = True
            outcome = self._run(message["code"], message["timeout_s"])
            if os.getpid() != self._pid:
                os._exit(0)  # the code has forked, and its child got here, too
            self._end_children()
            answer = {"output": self._output(), "error": self._error, "outcome": outcome}
            send(self._sock, {"run": message["run"], **answer})

    def _receive(self) -> dict[str, Any] | None:
        header = self._read(4)
        body = header and self._read(struct.unpack(">I", header)[0])
        return _decode(body.decode()) if body else None

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._sock.recv(count - len(data))
            if not piece:
                return b""
            data += piece
        return data

    def _run(self, code: str, timeout_s: float) -> str:
        self._redirect()
        signal.signal(signal.SIGALRM, _raise_out_of_time)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, timeout_s, _TICK_S)
                _set_mask(_SIG_UNBLOCK, _every_signal)
                return self._execute(code)
            finally:
                _set_mask(_SIG_BLOCK, _every_signal)
                signal.setitimer(signal.ITIMER_REAL, 0)
                sys.setrecursionlimit(self._recursion_limit)
        except BaseException as error:
            # Signals of the code's own may come as late as this, too.
            _set_mask(_SIG_BLOCK, _every_signal)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if isinstance(error, _OutOfTime):
                return "timeout"
            self._error = self._describe(error)
            return "error"

    def _redirect(self) -> None:
        """Output of the code and of its children goes to a file in memory, which has a limit."""
        self._error = ""
        # What the last run could not write is written when its stream goes: before, not after.
        sys.stdout = sys.stderr = None
        os.ftruncate(self._capture, 0)
        os.lseek(self._capture, 0, os.SEEK_SET)
        for number in (1, 2):
            os.dup2(self._capture, number)
        sys.stdout, sys.stderr = _stream(1), _stream(2)

    def _execute(self, code: str) -> str:
        self._runs += 1
        name = f"<code {self._runs}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            self._interpret(code, name)
            _flush()
        except _OutOfTime:
            _flush()
            raise
        except SystemExit as error:
            _flush()
            self._error = self._exit_message(error)
        except BaseException as error:
            _flush()
            self._error = self._describe(error)
        return "error" if self._error else "done"

    def _interpret(self, code: str, name: str) -> None:
        """Runs all statements; as at a prompt, the value of a last expression is shown."""
        tree = ast.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, name, "exec"), self._variables)
        if last is not None:
            value = eval(compile(last, name, "eval"), self._variables)
            if value is not None:
                print(repr(value))

    def _describe(self, error: BaseException) -> str:
        """The traceback within the code."""
        trace = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<code "):
            trace = trace.tb_next
        try:
            lines = traceback.format_exception(type(error), error, trace, limit=-_MAX_FRAMES)
            text = "".join(lines).strip()
        except _OutOfTime:
            raise
        except BaseException:  # a class of the code may do anything, even when it is asked its name
            text = type.__getattribute__(type(error), "__name__")
        return text[-self._output_chars :] or "an exception"

    def _exit_message(self, error: SystemExit) -> str:
        """What Python shows when a program ends so; empty if all is well."""
        code = error.code
        if code is None or (type(code) is int and code == 0):
            return ""
        try:
            return str(code)[-self._output_chars :]
        except _OutOfTime:
            raise
        except BaseException as other:
            return self._describe(other)

    def _end_children(self) -> None:
        """What the code has started ends with the run, and leaves no zombies."""
        if self._alone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)

    def _output(self) -> str:
        """Head and tail of what was written."""
        size = os.fstat(self._capture).st_size
        if size <= self._output_chars:
            return os.pread(self._capture, size, 0).decode(errors="replace")
        half = self._output_chars // 2
        head = os.pread(self._capture, half, 0).decode(errors="replace")
        tail = os.pread(self._capture, half, size - half).decode(errors="replace")
        return f"{head}\n[{size - 2 * half} bytes left out]\n{tail}"


def main(text: str) -> None:
    """Serves in a process of its own, with the settings of `spawners.CommandSpawner` as JSON."""
    settings = json.loads(text)
    # Whoever started this may die without a word.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.path += settings["import_paths"]
    sock = socket.socket(fileno=settings["fd"])
    if settings["alone"]:
        walls.finish(settings["number"])
    of_code = limits_lib.Limits(**settings["limits"])
    limits_lib.apply(of_code, count_processes=settings["alone"])
    Worker(sock, output_chars=of_code.output_chars, alone=settings["alone"]).serve()


def _stream(descriptor: int) -> io.TextIOWrapper:
    """Lines are written at once, so that they stay in order with those of children."""
    raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="replace", line_buffering=True)


def _flush() -> None:
    """Writes what can be written: the file may be full, or the code has put its own there."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _raise_out_of_time(number: int, frame: object) -> None:
    raise _OutOfTime
