"""Who runs the episodes: other processes through files, or this one inline."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from jaxrl_single import store as store_lib
from jaxrl_single import types
from jaxrl_single.data import ticket_files
from jaxrl_single.rollout import scheduler as scheduler_lib
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler import local_client
from jaxrl_single.stages import waiting
from jaxrl_single.stages import world as world_lib
from jaxrl_single.weights import base as weights_base

MakeEngine = Callable[[weights_base.Params, int], engine_lib.Engine]


class Backend(Protocol):
    """Whoever runs the episodes: a sampler process, or this process inline."""

    def send(self, batch: Sequence[types.Ticket]) -> None:
        """Takes tickets; their trajectories will appear in the store."""
        ...

    def serve(self, version: int, params: weights_base.Params) -> None:
        """Samples with these weights from now on; they were published already.

        Raises:
          waiting.StoppedInStep: what the weights before still had to sample does not end.
        """
        ...

    def check(self) -> None:
        """Gives a sign of life; raises `waiting.Stopped` when the run was asked to stop."""
        ...

    def wait(self) -> None:
        """Lets rollout go on for a moment; may raise `waiting.Stopped` too."""
        ...


class FileBackend:
    """Processes that read tickets and weights from directories and write the store."""

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        stopping: Callable[[], bool],
        tick: Callable[[], None],
        pause_s: float = 0.01,
    ):
        """`tick` is called in every turn of waiting, for the heartbeat."""
        self._directory = directory
        self._stopping = stopping
        self._tick = tick
        self._pause_s = pause_s

    def send(self, batch: Sequence[types.Ticket]) -> None:
        ticket_files.write(self._directory, batch)

    def serve(self, version: int, params: weights_base.Params) -> None:
        """The sampler follows the weights' directory by itself."""

    def check(self) -> None:
        self._tick()
        if self._stopping():
            raise waiting.Stopped

    def wait(self) -> None:
        time.sleep(self._pause_s)


class InlineBackend:
    """Runs tickets to their end whenever the trainer waits; the same order every time."""

    def __init__(
        self,
        world: world_lib.World,
        store: store_lib.TrajectoryStore,
        make_engine: MakeEngine,
        *,
        max_in_flight: int,
        stopping: Callable[[], bool],
        tick: Callable[[], None],
        no_progress_s: float,
        stop_timeout_s: float,
    ):
        """`tick` is called all the time, for the heartbeat.

        Args:
          no_progress_s: no episode for so long is an error.
          stop_timeout_s: when asked to stop, episodes of weights that end now are waited for as
            long as one comes within this time.
        """
        self._world = world
        self._store = store
        self._make_engine = make_engine
        self._max_in_flight = max_in_flight
        self._stopping = stopping
        self._tick = tick
        self._no_progress_s = no_progress_s
        self._stop_timeout_s = stop_timeout_s
        self._last_delivery = 0.0  # time.monotonic()
        self._engine: engine_lib.Engine | None = None
        self._runner = asyncio.Runner()
        self._queue: list[types.Ticket] = []

    def send(self, batch: Sequence[types.Ticket]) -> None:
        self._queue += batch

    def serve(self, version: int, params: weights_base.Params) -> None:
        # What was ordered under the old weights is sampled by them: episodes drain at a step. That
        # holds for a stop as well, after which the numbers have to be those without it.
        try:
            self._drain(stop_after_s=self._stop_timeout_s)
        except waiting.Stopped as stopped:
            raise waiting.StoppedInStep from stopped
        if self._engine is None:
            self._engine = self._make_engine(params, version)
        else:
            self._engine.load_weights(version, params)

    def check(self) -> None:
        self._tick()
        if self._stopping():
            raise waiting.Stopped

    def wait(self) -> None:
        self._drain(stop_after_s=0.0)

    def _drain(self, *, stop_after_s: float) -> None:
        """Runs the queue to its end; a stop ends it when no episode came for `stop_after_s`."""
        if not self._queue or self._engine is None:
            return
        queue, self._queue = self._queue, []
        client = local_client.InlineClient(self._engine)
        self._last_delivery = time.monotonic()

        def look() -> None:
            self._tick()
            silent = time.monotonic() - self._last_delivery
            if silent >= stop_after_s and self._stopping():
                raise waiting.Stopped
            if silent > self._no_progress_s:
                raise waiting.no_progress(silent, len(queue) - scheduler.finished)

        scheduler = scheduler_lib.Scheduler(
            sink=self._deliver,
            make_env=self._world.make_env,
            client_for=lambda ticket: client,
            chat=self._world.language,
            limits=self._world.limits,
            max_in_flight=self._max_in_flight,
            heartbeat=look,
        )
        self._runner.run(scheduler.drain(queue))

    def _deliver(self, trajectory: types.Trajectory) -> None:
        self._store.write(trajectory)
        self._last_delivery = time.monotonic()
