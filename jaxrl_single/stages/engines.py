"""The engines of a sampler process: the one that follows the trainer, and those of evaluations."""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable

from jaxrl_single import types
from jaxrl_single.rollout import client
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler import local_client
from jaxrl_single.weights import base as weights_base

_PINNED_ENGINES = 2  # held at once; more only while all of them are in use
_log = logging.getLogger(__name__)


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
        self._lock = threading.Lock()  # of the pinned engines
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

    def engine_for(self, version: int | None) -> engine_lib.Engine:
        """The engine that samples exactly this version; None = the following one. May take long.

        Raises:
          weights_base.InvalidWeights: there is no such version, or it must not be used.
        """
        if version is None:
            return self.following
        with self._loading:
            engine = self._find_pinned(version)
            return self._add_pinned(version) if engine is None else engine

    def client_for(self, ticket: types.Ticket) -> client.SamplerClient:
        """The sampler of a ticket in this process: pinned to its version, or following."""
        return local_client.LocalClient(self.engine_for(ticket.policy_version))

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

    def _find_pinned(self, version: int) -> engine_lib.Engine | None:
        with self._lock:
            if version in self._pinned:
                self._pinned.move_to_end(version)
            return self._pinned.get(version)

    def _add_pinned(self, version: int) -> engine_lib.Engine:
        params, _ = self._weights.fetch(version)
        for engine in self._take_idle():
            engine.stop()
        engine = self._make(params, version)
        engine.start()
        with self._lock:
            self._pinned[version] = engine
        return engine

    def _take_idle(self) -> list[engine_lib.Engine]:
        """Takes out what has to go for one more, longest unasked first; nobody waits for it."""
        with self._lock:
            too_many = len(self._pinned) + 1 - _PINNED_ENGINES
            idle = [version for version, engine in self._pinned.items() if not engine.in_use]
            return [self._pinned.pop(version) for version in idle[: max(0, too_many)]]

    def _all(self) -> list[engine_lib.Engine]:
        with self._lock:
            return [self.following, *self._pinned.values()]
