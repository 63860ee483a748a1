"""Which of several samplers a new session goes to, and which ones are left alone for a while."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence

_FIRST_REST_S = 0.1  # after a failure; doubled with each further one
_LONGEST_REST_S = 5.0
_LOOK_S = 0.2  # between looks for samplers when there is none


class SamplerChoice:
    """Counts the sessions of each sampler and gives new ones to the least loaded that is well.

    Args:
      urls: the samplers that there are now.
      clock: seconds; only differences matter.
    """

    def __init__(
        self, urls: Callable[[], Sequence[str]], *, clock: Callable[[], float] = time.monotonic
    ):
        self.urls = urls
        self._clock = clock
        self._sessions: collections.Counter[str] = collections.Counter()
        self._failures: collections.Counter[str] = collections.Counter()
        self._rest_until: dict[str, float] = {}

    def take(self) -> str | None:
        """The sampler of one more session; None when none is well. Ties: the first of the list."""
        well = [url for url in self.urls() if self._rest_until.get(url, 0.0) <= self._clock()]
        if not well:
            return None
        chosen = min(well, key=lambda url: self._sessions[url])
        self._sessions[chosen] += 1
        return chosen

    def leave(self, url: str) -> None:
        """A session that `take` has placed there is there no more."""
        self._sessions[url] -= 1

    def well(self, url: str) -> None:
        """It has answered."""
        self._failures.pop(url, None)
        self._rest_until.pop(url, None)

    def failed(self, url: str) -> None:
        """It has not answered; it gets no session for a while, longer each time in a row."""
        rest_s = min(_FIRST_REST_S * 2 ** self._failures[url], _LONGEST_REST_S)
        self._failures[url] += 1
        self._rest_until[url] = self._clock() + rest_s

    def busy(self, url: str, seconds: float) -> None:
        """It takes nothing more for so long."""
        self._rest_until[url] = self._clock() + seconds

    def rest_s(self) -> float:
        """Seconds until the first sampler may be tried, after `take` has found none."""
        now = self._clock()
        waits = [self._rest_until.get(url, now) - now for url in self.urls()]
        return max(0.0, min(waits, default=_LOOK_S))
