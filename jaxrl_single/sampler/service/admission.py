"""Which requests of the service reach an engine, which one, and what happens when a client leaves.

All of it runs on the service's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Protocol

from jaxrl_single import wire
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler.service import http_errors
from jaxrl_single.weights import base as weights_base

_RETRY_S = 1  # a chunk of decoding takes less


def submit(
    engine: engine_lib.Engine,
    request: wire.Request,
    *,
    once: bool,
    on_tokens: engine_lib.OnTokens | None = None,
) -> futures.Future[wire.Completion]:
    """`Engine.submit`; a session that is there `once` gives its slot back with its answer.

    Not when all answers are there: several requests of one client may need more slots than there
    are, and those that wait would wait for ever.
    """
    future = engine.submit(request, on_tokens=on_tokens)
    if once:
        future.add_done_callback(lambda _: engine.release(request.session))
    return future


class Lent(Protocol):
    """An engine that is not stopped for another one as long as anybody refers to this."""

    engine: engine_lib.Engine


class Router(Protocol):
    """Who samples what.

    Attributes:
      following: the engine that follows the trainer's weights.
    """

    following: engine_lib.Engine

    def engine_for(self, version: int | None) -> Lent:
        """The engine that samples exactly this version; None = the following one. May take long.

        Raises:
          weights_base.InvalidWeights: there is no such version, or it must not be used.
        """
        ...

    def load(self, version: int | None) -> int:
        """Makes the following engine serve this version (None = the newest); returns it.

        Raises:
          weights_base.InvalidWeights: there is no such version, or it must not be used.
          ValueError: it does not fit the model.
        """
        ...

    def stats(self) -> dict[str, float]:
        """Numbers since the start, by name."""
        ...


class Admission:
    """Hands requests to engines, within limits.

    A session may have one request in flight. If its client goes away, the session ends: its slot
    is free at once. A client may also go away between two requests, which nobody sees: so a
    session that has been idle for long gives its slot to a request that waits for one. If it comes
    back, all of it is read as one prompt: what it had sampled is prefilled instead of decoded, and
    its numbers differ by rounding from what they would have been.
    """

    def __init__(self, router: Router, *, max_waiting: int):
        """Lets max_waiting requests wait for a slot."""
        self._router = router
        self._max_waiting = max_waiting
        self._busy: dict[str, object] = {}  # session -> its request in flight
        self._idle_since: dict[str, float] = {}  # of sessions between two requests, oldest first
        # Where each session has been; an engine that the router drops takes its sessions along.
        self._engines: dict[str, weakref.WeakSet[engine_lib.Engine]] = {}

    @property
    def num_in_flight(self) -> int:
        """Sessions with an unfinished request."""
        return len(self._busy)

    async def engine_for(self, version: int | None) -> Lent:
        """The engine of a request; keep what is returned until the request has its answer.

        Raises:
          ApiError: 400, no such version; 503, there are no weights yet.
        """
        if version is None:
            lent = self._router.engine_for(None)
        else:
            try:
                lent = await asyncio.to_thread(self._router.engine_for, version)
            except weights_base.InvalidWeights as error:
                message = str(error)
                raise http_errors.wrong(message, "policy_version", "invalid_weights") from None
        engine = lent.engine
        if engine.error is None and engine.version < 0:
            message = "the sampler has no weights yet"
            raise http_errors.ApiError(503, message, code="no_weights", retry_after_s=_RETRY_S)
        return lent

    @contextlib.contextmanager
    def in_flight(
        self, engine: engine_lib.Engine, sessions: Sequence[str], *, once: bool
    ) -> Iterator[None]:
        """While requests of these sessions are submitted and answered.

        Args:
          once: the sessions end with these requests. Others end only if the client goes away.

        Raises:
          ApiError: 409, a session has a request in flight; 429, too many requests wait.
        """
        self._refuse(engine, sessions)
        request = object()
        known = self._idle_since.keys() & set(sessions)
        for session in sessions:
            self._busy[session] = request
            self._idle_since.pop(session, None)
            self._route(session, engine)
        lasting = set() if once else set(sessions)
        try:
            yield
        except (asyncio.CancelledError, ConnectionError):
            lasting = set()
            raise
        except Exception:
            lasting &= known  # a request that was refused begins no session
            raise
        finally:
            for session in sessions:
                if self._busy.get(session) is not request:
                    continue  # released meanwhile
                del self._busy[session]
                if session in lasting:
                    self._idle_since[session] = time.monotonic()
                else:
                    self.release(session)

    def release(self, session: str) -> None:
        """Ends the session, wherever it is; unknown ones are ignored."""
        self._busy.pop(session, None)
        self._idle_since.pop(session, None)
        for engine in list(self._engines.pop(session, ())):
            engine.release(session)

    def make_room(self, idle_s: float) -> None:
        """Ends sessions that have been idle for so long, one for each request without a slot."""
        wanted: dict[engine_lib.Engine, int] = {}
        for session, since in list(self._idle_since.items()):
            if time.monotonic() - since < idle_s:
                return
            engines = list(self._engines[session])
            if any(wanted.setdefault(engine, engine.num_waiting) > 0 for engine in engines):
                for engine in engines:
                    wanted[engine] = wanted.get(engine, engine.num_waiting) - 1
                self.release(session)

    def _route(self, session: str, engine: engine_lib.Engine) -> None:
        """Notes that an engine has the session; a pinned one that had it until now forgets it."""
        engines = self._engines.setdefault(session, weakref.WeakSet())
        if engine is not self._router.following:
            for before in engines - {engine, self._router.following}:
                before.release(session)
                engines.discard(before)
        engines.add(engine)

    def _refuse(self, engine: engine_lib.Engine, sessions: Sequence[str]) -> None:
        busy = self._busy.keys() & set(sessions)
        if busy:
            message = f"session {min(busy)!r} has an unfinished request; it may have one"
            raise http_errors.ApiError(409, message, code="session_busy", retry_after_s=_RETRY_S)
        if set(sessions) <= self._idle_since.keys():
            return  # they have their slots, and will give them back the sooner
        waiting = engine.num_waiting
        if waiting >= self._max_waiting:
            message = f"{waiting} requests wait for a slot already; try again later"
            raise http_errors.ApiError(
                429, message, code="too_many_waiting", retry_after_s=_RETRY_S
            )
