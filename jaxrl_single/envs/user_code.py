"""Calls of code that is not ours: environments, tools, judges, rewards, scripts.

Whatever it raises, SystemExit among it, is a failure of its episode, and so is code that blocks
the event loop or does not let go when its time is over. Only a cancellation by whoever runs the
episode goes through.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import inspect
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

MAX_LINE = 500  # characters of the first line of an error
MAX_TRACE = 12_000  # characters of its traceback
_GRACE_S = 5.0  # of cancelled code, to free what it holds
_AGAIN_S = 0.5  # between interruptions of code that goes on blocking
_DESCRIBE_S = 5.0  # of an exception, to say what it is


class _Blocked(BaseException):
    """Interrupts code that holds the event loop; no `except Exception` keeps it."""


async def run(
    function: Callable[[], Awaitable[T]],
    *,
    name: str,
    limit_s: float | None = None,
    block_s: float | None = None,
) -> T:
    """Awaits what `function()` gives.

    Args:
      name: of the function, for messages.
      limit_s: it is cancelled after so many seconds; None = no bound.
      block_s: seconds that it may hold the event loop at a stretch; None = no bound. Kept in the
        main thread of a process only, and not within one call of a C library.

    Raises:
      TimeoutError: one of the bounds was exceeded.
      TypeError: there is nothing to await.
      BaseException: what the function raised.
    """
    try:
        async with asyncio.timeout(limit_s) as clock:
            return await _Call(function, name, block_s)
    except TimeoutError as error:
        if not clock.expired():
            raise  # one of its own
        raise TimeoutError(
            f"{name} has not ended within {limit_s:g} s (env.step_timeout_s)"
        ) from error


@contextlib.contextmanager
def watched(name: str, block_s: float | None) -> Iterator[None]:
    """Interrupts what blocks inside for longer than `block_s`, by TimeoutError."""
    if block_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    armed = True

    def interrupt(*_: Any) -> None:
        if armed:
            raise _Blocked

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, block_s, _AGAIN_S)
        yield
    except _Blocked:
        raise TimeoutError(
            f"{name} has blocked the event loop, and with it all other episodes, for {block_s:g} s "
            "(env.step_timeout_s, at most half of supervisor.heartbeat_s): await what takes time, "
            "or give it to asyncio.to_thread"
        ) from None
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Call:
    """The awaitable of `run`: hands every step of user code on, and watches it."""

    def __init__(self, function: Callable[[], Awaitable[Any]], name: str, block_s: float | None):
        self._function = function
        self._name = name
        self._block_s = block_s
        self._timer: asyncio.TimerHandle | None = None
        self._abandon = False

    def __await__(self) -> Generator[Any, Any, Any]:
        self._task = asyncio.current_task()
        self._cancels = self._task.cancelling()
        steps = _awaiting(self._begin()).__await__()
        thrown: BaseException | None = None
        try:
            while True:
                try:
                    with watched(self._name, self._block_s):
                        pause = steps.send(None) if thrown is None else steps.throw(thrown)
                except StopIteration as end:
                    self._raise_cancellation()
                    return end.value
                except BaseException:
                    self._raise_cancellation()
                    raise
                self._bound_cleanup()
                thrown = None
                try:
                    yield pause
                except GeneratorExit:
                    steps.close()
                    raise
                except BaseException as error:
                    thrown = error
                if self._abandon:
                    self._close(steps)
                    self._task.uncancel()  # the timer's
                    raise asyncio.CancelledError(f"{self._name} goes on although it was cancelled")
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _begin(self) -> Awaitable[Any]:
        with watched(self._name, self._block_s):
            found = self._function()
        if not inspect.isawaitable(found):
            raise TypeError(
                f"{self._name} gave a {type(found).__name__}, which can't be awaited; define it "
                "with `async def`"
            )
        return found

    @property
    def _cancelled(self) -> bool:
        """From outside; what the code cancels and takes back itself does not count."""
        return self._task.cancelling() > self._cancels

    def _raise_cancellation(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError

    def _bound_cleanup(self) -> None:
        """Cancelled code may await while it frees what it holds, but not for ever."""
        if self._cancelled and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GRACE_S, self._give_up)
        elif not self._cancelled and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._abandon = True
        self._task.cancel()

    def _close(self, steps: Generator[Any, Any, Any]) -> None:
        with contextlib.suppress(BaseException), watched(self._name, self._block_s):
            steps.close()


async def _awaiting(awaitable: Awaitable[T]) -> T:
    return await awaitable


def is_ours(error: BaseException) -> bool:
    """Whether whoever runs this task ends it: then the error has to go through."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs: the coroutine is being thrown away
        return True
    if task is None:
        return True
    return isinstance(error, asyncio.CancelledError) and task.cancelling() > 0


def describe(error: BaseException) -> str:
    """Its last line, then the traceback, both bounded; never fails, and can be written anywhere."""
    try:
        with watched("an exception's __str__", _DESCRIBE_S):
            trace = "".join(traceback.format_exception(error))
    except BaseException:
        trace = ""
    return f"{line(error)}\n{writable(trace, MAX_TRACE)}"


def line(error: BaseException) -> str:
    """What a traceback ends with, at most MAX_LINE characters; never fails."""
    try:
        with watched("an exception's __str__", _DESCRIBE_S):
            told = traceback.TracebackException(type(error), error, None)
            told.__notes__ = None  # they come last, but do not say what was raised
            return writable(list(told.format_exception_only())[-1].strip(), MAX_LINE)
    except BaseException as failure:
        kind = writable(type(error).__name__, MAX_LINE)
        return f"{kind} (its text can't be had: {type(failure).__name__})"


def place(error: BaseException) -> str:
    """The last line of a traceback and where in the code it was raised, in one sentence."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{line(error)}{where}"


def writable(text: str, limit: int) -> str:
    """At most about `limit` characters of a text, halves of characters spelled out."""
    return shorten(text, limit).encode("utf-8", "backslashreplace").decode()


def shorten(text: str, limit: int) -> str:
    """Head and tail of a text that is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    tail = limit // 2
    left_out = len(text) - limit
    return f"{text[: limit - tail]}\n[{left_out} characters left out]\n{text[len(text) - tail :]}"


def contain_tasks() -> None:
    """Tasks that user code starts on the running loop end only themselves, whatever they raise.

    A SystemExit in a task would otherwise end the loop, and the program without a word.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_contained_task)


def _contained_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any):
    return asyncio.Task(_Contained(coroutine), loop=loop, **options)


class _Contained(collections.abc.Coroutine):
    """A coroutine that raises RuntimeError for what would end the loop."""

    def __init__(self, coroutine: collections.abc.Coroutine):
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def _step(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"a task raised {type(error).__name__}") from error

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()
