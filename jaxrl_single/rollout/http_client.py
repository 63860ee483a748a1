"""A sampler behind HTTP, or several: one `SamplerClient` that spreads sessions and survives losses.

A session stays with the sampler that holds its cache. When that sampler is lost, the next one goes
on from the tokens of the request; its randomness is named by the request too, so only the speed
of the episode knows of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from jaxrl_single import wire
from jaxrl_single.rollout import connections, sampler_choice

_RELEASE_S = 10.0  # for a goodbye; a sampler that does not hear it drops idle sessions by itself
_BUSY_S = 1.0  # between tries when a sampler refuses without saying for how long
_NOT_FINITE = "not_finite"  # code of sampler/service/http_errors.py
_log = logging.getLogger(__name__)


class _Lost(Exception):
    """No answer, or one that says that the sampler itself has failed."""


class _Busy(Exception):
    """The sampler takes no more requests for `seconds`."""

    def __init__(self, reason: str, seconds: float):
        super().__init__(reason)
        self.seconds = seconds


@dataclasses.dataclass
class _Session:
    """Where a session lives.

    Attributes:
      own_name: as its episode calls it.
      url: of its sampler, None while it has none.
      settled: the sampler has answered once, so it holds a cache.
      losses: samplers that were lost with it.
      released: nobody waits for it any more.
    """

    own_name: str
    url: str | None = None
    settled: bool = False
    losses: int = 0
    released: bool = False

    @property
    def name(self) -> str:
        """On the wire: another one after each loss, for a session has one request at a time, and
        the lost sampler may not have noticed yet."""
        return f"{self.own_name}~{self.losses}" if self.losses else self.own_name


class HttpClient:
    """Samples over POST /generate and /release of sampler/service. Use it on one event loop.

    Requests that a sampler refuses for now (429, or whatever comes with Retry-After) are sent again
    when it says so; requests that met a lost connection or another answer of 500 or more are sent
    to another sampler, or again.

    Args:
      urls: the samplers that there are now; asked before every choice, so they may come and go.
      token: bearer token of the samplers, or None.
      patience_s: seconds from the first failure of a request in which a later try must succeed.
        An answer may take any time: long episodes must not be the ones that fail.
    """

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        *,
        token: str | None = None,
        patience_s: float = 600.0,
    ):
        self._choice = sampler_choice.SamplerChoice(urls)
        self._token = token
        self._patience_s = patience_s
        self._sessions: dict[str, _Session] = {}
        self._http: aiohttp.ClientSession | None = None

    async def generate(self, request: wire.Request) -> wire.Completion:
        """See `client.SamplerClient`.

        Raises:
          ValueError: the sampler refuses the request for good (400, 401, 404, 413), with its
            reason, or answers with what is no completion.
          FloatingPointError: the weights compute no finite logits for this request.
          RuntimeError: no sampler has answered for `patience_s`; the last failure is the cause.
        """
        session = self._sessions.setdefault(request.session, _Session(request.session))
        deadline, failure = None, None
        while not session.released:
            pause_s = 0.0
            self._settle(session)
            if session.url is None:
                pause_s = self._choice.rest_s()
            else:
                try:
                    return await self._ask(session, request)
                except (_Lost, _Busy) as error:
                    if session.released:
                        break
                    failure, pause_s = error, self._note(session, error)
            deadline = deadline or time.monotonic() + self._patience_s
            if time.monotonic() + pause_s > deadline:
                raise RuntimeError(
                    f"no sampler has answered for {self._patience_s:g} s "
                    f"(rollout.sampler_patience_s), there are {list(self._choice.urls())}: "
                    f"{failure or 'none is well'}"
                ) from failure
            await asyncio.sleep(pause_s)
        return wire.Completion([], [], [], [], "cancelled")

    async def release(self, session: str) -> None:
        """See `client.SamplerClient`. Never fails: a sampler that is gone holds nothing."""
        found = self._sessions.pop(session, None)
        if found is None:
            return
        found.released = True
        url = self._leave(found)
        if url is None:
            return
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._post(url, "release", {"session": found.name})
        except (_Lost, _Busy, ValueError, TimeoutError) as error:
            _log.info("session %s was not released: %s", found.name, error)

    def pinned(self, version: int) -> PinnedClient:
        """The same samplers, answering with the weights of one version."""
        return PinnedClient(self, version)

    async def close(self) -> None:
        """Closes all connections; requests that wait fail."""
        if self._http is not None:
            await self._http.close()

    def _settle(self, session: _Session) -> None:
        """Gives the session a sampler if there is a well one."""
        if session.url is not None and session.url not in self._choice.urls():
            self._lose(session)
        if session.url is None:
            session.url = self._choice.take()

    def _lose(self, session: _Session) -> None:
        self._leave(session)
        session.losses += 1
        session.settled = False

    def _leave(self, session: _Session) -> str | None:
        """Takes its sampler from the session, once; returns which that was."""
        url, session.url = session.url, None
        if url is not None:
            self._choice.leave(url)
        return url

    def _note(self, session: _Session, error: _Lost | _Busy) -> float:
        """Books a failure; returns the seconds until the next try makes sense."""
        url = session.url
        if isinstance(error, _Lost):
            _log.warning("session %s loses the sampler %s: %s", session.name, url, error)
            self._choice.failed(url)
            self._lose(session)
            return 0.0
        self._choice.busy(url, error.seconds)
        if session.settled:
            return error.seconds  # its cache is worth the wait
        self._leave(session)
        return 0.0

    async def _ask(self, session: _Session, request: wire.Request) -> wire.Completion:
        url = session.url
        named = dataclasses.replace(request, session=session.name)
        answer = await self._post(url, "generate", wire.request_to_json(named))
        self._choice.well(url)
        session.settled = True
        return wire.completion_from_json(answer)

    async def _post(self, url: str, verb: str, message: dict[str, Any]) -> Any:
        """The JSON of an answer of 200."""
        if self._http is None:
            self._http = connections.open_session(self._token)
        try:
            async with self._http.post(f"{url}/{verb}", json=message) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _Lost(f"{type(error).__name__}: {error}") from error
        if response.status == 200:
            return _json(body)
        reason = f"{url}/{verb} answers {response.status}: {_error(body, 'message')}"
        if response.status in (409, 429) or "Retry-After" in response.headers:
            raise _Busy(reason, _retry_after(response.headers.get("Retry-After")))
        if response.status >= 500 and _error(body, "code") == _NOT_FINITE:
            raise FloatingPointError(reason)  # every sampler of these weights would say the same
        if response.status >= 500:
            raise _Lost(reason)
        raise ValueError(reason)


class PinnedClient:
    """Asks an `HttpClient` for the weights of one version; for evaluations."""

    def __init__(self, client: HttpClient, version: int):
        self._client = client
        self._version = version

    async def generate(self, request: wire.Request) -> wire.Completion:
        """As `HttpClient.generate`."""
        pinned = dataclasses.replace(request, policy_version=self._version)
        return await self._client.generate(pinned)

    async def release(self, session: str) -> None:
        """As `HttpClient.release`."""
        await self._client.release(session)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise wire.InvalidMessage(f"the sampler's answer is not JSON: {body[:80]!r}") from error


def _error(body: bytes, field: str) -> str:
    """A field of what the sampler says is wrong, in OpenAI's form of errors or any other."""
    try:
        return str(json.loads(body)["error"][field])
    except (ValueError, TypeError, KeyError):
        return body[:200].decode(errors="replace")


def _retry_after(header: str | None) -> float:
    try:
        return max(0.0, float(header or _BUSY_S))
    except ValueError:  # the other form, a date, is for proxies
        return _BUSY_S
