"""The engines of a sampler process: the one that follows the trainer, and those of evaluations."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import threading
import weakref
from collections.abc import Callable

from jaxrl_single import types, wire
from jaxrl_single.rollout import client
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler import local_client
from jaxrl_single.weights import base as weights_base

_PINNED_ENGINES = 2  # held at once; more only while all of them are in use
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Lent:
    """An engine that is not stopped for another one as long as anybody refers to this."""

    engine: engine_lib.Engine


class EngineClient:
    """The sampler of one episode in this process: pinned to a version, or following (None)."""

    def __init__(self, engines: Engines, version: int | None):
        self._engines = engines
        self._version = version
        self._lent: Lent | None = None

    async def generate(self, request: wire.Request) -> wire.Completion:
        """See `client.SamplerClient`; with an engine that has failed it never returns.

        For then this process ends, and the episode, which is not to blame, is to be played by the
        next one: its ticket stays open.
        """
        if self._lent is None:
            # Making an engine takes long, and the event loop has other episodes.
            self._lent = await asyncio.to_thread(self._engines.engine_for, self._version)
        engine = self._lent.engine
        try:
            return await local_client.LocalClient(engine).generate(request)
        except Exception:
            if engine.error is None:
                raise
        return await asyncio.get_running_loop().create_future()

    async def release(self, session: str) -> None:
        """See `client.SamplerClient`."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.engine.release(session)


class Engines:
    """Which engine samples what. All methods may be called from any thread.

    Args:
      following: started; its version is -1 until the first weights come.
      make: makes the engine of one version for evaluations, not yet started.
      weights: where the trainer publishes.

    Attributes:
      following: the engine that follows the trainer.
    """

    def __init__(
        self,
        following: engine_lib.Engine,
        make: Callable[[weights_base.Params, int], engine_lib.Engine],
        weights: weights_base.WeightStore,
    ):
        self.following = following
        self._make = make
        self._weights = weights
        self._newest_seen = -1
        self._pinned: collections.OrderedDict[int, engine_lib.Engine] = collections.OrderedDict()
        self._lent: weakref.WeakSet[Lent] = weakref.WeakSet()
        self._lock = threading.Lock()  # of the pinned engines and who has them
        self._loading = threading.Lock()  # one at a time; it takes long

    def follow(self) -> None:
        """Loads the newest version when it is new; one that was loaded by hand stays until then.

        A version that must not be used is reported once, and the old one goes on serving.

        Raises:
          ValueError: the first version ever does not fit the model of this process.
        """
        newest = self._weights.latest()
        if newest is None or newest <= self._newest_seen:
            return
        self._newest_seen = newest
        try:
            self._load(newest)
        except (weights_base.InvalidWeights, ValueError) as error:
            if self.following.version < 0 and isinstance(error, ValueError):
                raise
            _log.warning("weights are not used: %s", error)

    def load(self, version: int | None) -> int:
        """Makes the following engine serve this version (None = the newest); returns it.

        Raises:
          weights_base.InvalidWeights: there is no such version, or it must not be used.
          ValueError: it does not fit the model.
        """
        if version is None:
            version = self._weights.latest()
        if version is None:
            raise weights_base.MissingVersion("the trainer has published no weights yet")
        self._load(version)
        return version

    def engine_for(self, version: int | None) -> Lent:
        """The engine that samples exactly this version; None = the following one. May take long.

        Raises:
          weights_base.InvalidWeights: there is no such version, or it must not be used.
        """
        if version is None:
            return Lent(self.following)
        found = self._lend_pinned(version)
        if found is None:
            with self._loading:
                found = self._lend_pinned(version) or self._add_pinned(version)
        return found

    def client_for(self, ticket: types.Ticket) -> client.SamplerClient:
        """The sampler of a ticket in this process: pinned to its version, or following."""
        return EngineClient(self, ticket.policy_version)

    async def close_clients(self) -> None:
        """Closes what the clients hold of this event loop, which is nothing in this process."""

    def check(self) -> None:
        """Raises RuntimeError with what ended an engine."""
        for engine in self._all():
            if engine.error is not None:
                raise RuntimeError("the sampler engine failed") from engine.error

    def stats(self) -> dict[str, float]:
        """Of the following engine, see `Engine.stats`, with its version."""
        return self.following.stats() | {"version": self.following.version}

    def stop(self) -> None:
        """Ends all engines; unfinished requests fail."""
        for engine in self._all():
            engine.stop()

    def _load(self, version: int) -> None:
        params, _ = self._weights.fetch(version)
        self.following.load_weights(version, params)

    def _lend_pinned(self, version: int) -> Lent | None:
        with self._lock:
            if version not in self._pinned:
                return None
            self._pinned.move_to_end(version)
            return self._lend(self._pinned[version])

    def _add_pinned(self, version: int) -> Lent:
        params, _ = self._weights.fetch(version)
        for engine in self._take_idle():
            engine.stop()
        engine = self._make(params, version)
        engine.start()
        with self._lock:
            self._pinned[version] = engine
            return self._lend(engine)

    def _lend(self, engine: engine_lib.Engine) -> Lent:
        lent = Lent(engine)
        self._lent.add(lent)
        return lent

    def _take_idle(self) -> list[engine_lib.Engine]:
        """Takes out what has to go for one more, longest unasked first; nobody waits for it."""
        with self._lock:
            too_many = len(self._pinned) + 1 - _PINNED_ENGINES
            lent = [lent.engine for lent in self._lent]
            idle = [
                version
                for version, engine in self._pinned.items()
                if not engine.in_use and engine not in lent
            ]
            return [self._pinned.pop(version) for version in idle[: max(0, too_many)]]

    def _all(self) -> list[engine_lib.Engine]:
        with self._lock:
            return [self.following, *self._pinned.values()]
