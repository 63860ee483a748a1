"""Python interpreters in a sandbox, for asyncio.

    async with pool.interpreter(seed=1) as python:
        result = await python.run("x = 2 ** 10")
        result = await python.run("print(x)")        # x is still there

Each is started before it is needed, used by one episode, and ended with it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import socket
import struct
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

from jaxrl_single.envs.sandbox import isolation as isolation_lib
from jaxrl_single.envs.sandbox import limits as limits_lib
from jaxrl_single.envs.sandbox import spawners

START_S = 120.0  # a start takes so long at most; a fork takes milliseconds, but loading does not
_GRACE_S = 1.0  # after its deadline a run may still answer for so long, before it is killed
_END_S = 5.0  # until a killed interpreter is gone
_SIZE = 64  # interpreters in use at one time; further episodes wait
_SPARES = 4  # interpreters that wait for an episode
_JSON_BYTES = 12  # of one byte of output, at most, as JSON
_OUTCOMES = ("done", "error", "timeout")  # that an interpreter may report of itself


class SandboxError(RuntimeError):
    """An interpreter can't be started: a fault of this machine, not of the code."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
      output: what the code and its children wrote, stdout and stderr, shortened.
      error: the traceback of what the code raised; empty if nothing.
      outcome: "done", "error" (it raised), "timeout", or "died" (the interpreter was killed,
        crashed, or ended itself).
      kept: the variables live on.
    """

    output: str
    error: str = ""
    outcome: str = "done"
    kept: bool = True


class Gate:
    """Lets a number of users in at one time, in whichever event loop they are."""

    def __init__(self, size: int):
        self._size = size
        self._of_loop: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def here(self) -> asyncio.Semaphore:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        return self._of_loop.setdefault(loop, asyncio.Semaphore(self._size))


class Pool:
    """Makes interpreters of one isolation with the same limits."""

    def __init__(
        self,
        isolation: isolation_lib.Isolation,
        limits: limits_lib.Limits,
        *,
        size: int = _SIZE,
        spares: int = _SPARES,
        preload: tuple[str, ...] = (),
        own_code: bool = False,
    ):
        """Starts nothing yet.

        Args:
          size: interpreters in use at one time.
          spares: interpreters that wait, ready, for an episode.
          preload: modules that every interpreter finds loaded; under "namespaces" only.
          own_code: this package can be imported in there.
        """
        self.limits = limits
        self._spawner = spawners.make(isolation, limits, preload, own_code=own_code)
        self.gate = Gate(size)
        self._num_spares = spares
        self._spares: collections.deque[_Process] = collections.deque()
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def interpreter(self, *, seed: int = 0) -> AsyncIterator[Interpreter]:
        """An interpreter for the length of the block.

        Args:
          seed: of the module `random` in there.
        """
        one = Interpreter(self, seed)
        try:
            yield one
        finally:
            await one.close()

    async def take(self) -> _Process:
        """A process that is ready.

        Raises:
          SandboxError: it can't be started.
        """
        if not self._spawner.alive():
            self._drop_spares()
        while self._spares:
            spare = self._spares.popleft()
            # One that has died while it waited says nothing about the next.
            with contextlib.suppress(SandboxError):
                return await self._checked(spare)
        return await self._checked(self._start())

    async def _checked(self, process: _Process) -> _Process:
        """A process that is ready; it is ended if it is not, or if no spare can be started."""
        try:
            self._fill()
            await process.ready()
        except BaseException:
            await process.end()
            raise
        return process

    def close(self) -> None:
        """Ends everything."""
        self._drop_spares()
        self._spawner.close()

    def _drop_spares(self) -> None:
        while self._spares:
            self._spares.popleft().drop()

    def _fill(self) -> None:
        while len(self._spares) < self._num_spares:
            self._spares.append(self._start())

    def _start(self) -> _Process:
        number = next(self._numbers)
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                self._spawner.start(number, theirs)
            except OSError as error:
                mine.close()
                raise SandboxError(f"an interpreter can't be started: {error}") from error
        return _Process(number, mine, self._spawner, self.limits)


class Interpreter:
    """Variables live from run to run, as long as the process behind it does."""

    def __init__(self, pool: Pool, seed: int):
        self._pool = pool
        self._seed = seed
        self._process: _Process | None = None
        self._entered: asyncio.Semaphore | None = None
        self._runs = itertools.count()

    async def run(self, code: str, timeout_s: float = 5.0) -> Result:
        """Runs a piece of code.

        After a run that had to be killed the next one finds a new interpreter.

        Args:
          code: Python.
          timeout_s: by the clock; the answer comes at most a little later.

        Raises:
          SandboxError: there is no interpreter to be had.
        """
        if self._process is None:
            await self._begin()
        message = {"run": next(self._runs), "code": code, "timeout_s": timeout_s}
        message["seed"] = self._seed
        started = time.monotonic()
        try:
            answer = await self._process.ask(message, timeout_s + _GRACE_S)
            return _result(answer, message["run"])
        except TimeoutError:
            outcome = "timeout"
        except (OSError, EOFError, ValueError):
            outcome = "timeout" if time.monotonic() - started >= timeout_s else "died"
        await self.close()
        return Result("", outcome=outcome, kept=False)

    async def close(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        try:
            if process is not None:
                await process.end()
        finally:
            self._leave()

    async def _begin(self) -> None:
        gate = self._pool.gate.here()
        await gate.acquire()
        self._entered = gate
        try:
            self._process = await self._pool.take()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        gate, self._entered = self._entered, None
        if gate is not None:
            gate.release()


class _Process:
    """The near end of one interpreter."""

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        spawner: spawners.Spawner,
        limits: limits_lib.Limits,
    ):
        sock.setblocking(False)
        self._number = number
        self._sock = sock
        self._spawner = spawner
        self._most_bytes = _JSON_BYTES * 4 * limits.output_chars + 1024

    async def ready(self) -> None:
        """Waits for the first sign of life; SandboxError when there is none."""
        try:
            async with asyncio.timeout(START_S):
                message = await self._receive()
            if message.get("ready"):  # else it has said why it ended
                self._check_alive()
        except (TimeoutError, OSError, EOFError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise SandboxError(
                f"an interpreter in the sandbox does not start ({reason})"
            ) from error
        if not message.get("ready"):
            raise SandboxError(
                f"an interpreter in the sandbox can't be started: {message.get('failed')}"
            )

    def _check_alive(self) -> None:
        """Raises EOFError if the other end said that it is ready and has died since."""
        with contextlib.suppress(BlockingIOError):
            if not self._sock.recv(1, socket.MSG_PEEK):
                raise EOFError("the interpreter has ended")

    async def ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Sends a message and returns the answer.

        Raises:
          TimeoutError: none came in time.
          OSError, EOFError, ValueError: the other end has gone, or talks nonsense.
        """
        data = json.dumps(message).encode()
        async with asyncio.timeout(timeout_s):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._sock, struct.pack(">I", len(data)) + data)
            return await self._receive()

    async def end(self) -> None:
        """Kills the process and waits until it is gone."""
        self._spawner.kill(self._number)
        try:
            # The socket closes when the last process that holds it has ended.
            async with asyncio.timeout(_END_S):
                loop = asyncio.get_running_loop()
                while await loop.sock_recv(self._sock, 65536):
                    pass
        except (OSError, TimeoutError):
            pass
        finally:
            self._sock.close()

    def drop(self) -> None:
        """Kills the process without waiting."""
        self._spawner.kill(self._number)
        self._sock.close()

    async def _receive(self) -> dict[str, Any]:
        (size,) = struct.unpack(">I", await self._read(4))
        if size > self._most_bytes:
            raise ValueError(f"a message of {size} bytes")
        data = await self._read(size)
        try:
            message = json.loads(data)
        except RecursionError as error:
            raise ValueError("a message too deeply nested") from error
        if not isinstance(message, dict):
            raise ValueError("a message that is no object")
        return message

    async def _read(self, count: int) -> bytes:
        loop, data = asyncio.get_running_loop(), b""
        while len(data) < count:
            piece = await loop.sock_recv(self._sock, count - len(data))
            if not piece:
                raise EOFError("the interpreter has ended")
            data += piece
        return data


def _result(answer: dict[str, Any], run: int) -> Result:
    """What an interpreter says of a run; ValueError if it is not of the form that was agreed on."""
    output, error, outcome = (answer.get(name) for name in ("output", "error", "outcome"))
    if answer.get("run") != run or outcome not in _OUTCOMES:
        raise ValueError("an answer to something else")
    if not isinstance(output, str) or not isinstance(error, str):
        raise ValueError("an answer without text")
    return Result(_encodable(output), _encodable(error), outcome)


def _encodable(text: str) -> str:
    """Without halves of characters, which Python keeps in strings and nothing else can write."""
    return text.encode(errors="replace").decode()
