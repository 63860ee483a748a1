"""The sampler process: an engine that follows the trainer's weights, with the rollout beside it."""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import pathlib
import time
from collections.abc import Callable

import jax
import ml_collections

from jaxrl_single import store as store_lib
from jaxrl_single import types, workdir
from jaxrl_single.data import ticket_files
from jaxrl_single.models import api
from jaxrl_single.rollout import client, scheduler
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler import local_client
from jaxrl_single.stages import build
from jaxrl_single.stages import world as world_lib
from jaxrl_single.weights import base as weights_base
from jaxrl_single.weights import filesystem

_FOLLOW_S = 0.02  # between looks for new weights
_STATS_S = 1.0  # between two writings of the sampler's numbers
_PINNED_ENGINES = 2  # versions under evaluation whose weights are held at once
_log = logging.getLogger(__name__)


def run(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    *,
    stopping: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    """Serves until `stopping()`.

    Raises:
      RuntimeError: the engine failed.
    """
    world = world_lib.make(config)
    policy, _ = build.models(config, world.language.vocab_size)
    run_id = workdir.run_id_of(paths)
    weights = filesystem.FileWeights(weights_directory(config, paths), run_id)
    store = store_lib.TrajectoryStore(paths.trajectories, run_id)
    engines = Engines(config, policy, weights)
    try:
        asyncio.run(
            _serve(
                config, world, engines, store, paths, run_id=run_id, stopping=stopping, beat=beat
            )
        )
    finally:
        engines.stop()


def weights_directory(config: ml_collections.ConfigDict, paths: workdir.Workdir) -> str:
    """Where versions are published; a directory outside the workdir gets one of this run's own."""
    if not config.weights.directory:
        return str(paths.weights)
    return os.path.join(config.weights.directory, workdir.run_id_of(paths))


def make_engine(
    config: ml_collections.ConfigDict,
    policy: api.Policy,
    params: api.Params,
    version: int,
    *,
    record: types.Record = types.RECORD_NOTHING,
) -> engine_lib.Engine:
    """An engine of the config's shape; its context is a whole episode."""
    return engine_lib.Engine(
        policy,
        params,
        version,
        num_slots=config.sampler.num_slots,
        cache_length=config.env.max_tokens,
        decode_chunk=config.sampler.decode_chunk,
        prefill_rows=config.sampler.prefill_rows,
        prefill_lengths=tuple(config.sampler.prefill_lengths),
        max_fed_tokens=config.sampler.max_fed_tokens,
        seed=config.seed,
        swap=config.sampler.swap,
        record=record,
    )


def read_stats(paths: workdir.Workdir) -> dict[str, float]:
    """The sampler's newest numbers by metric name; empty in sync mode."""
    started = workdir.read_json(paths.processes) or {"children": {}}
    if "sampler" not in started["children"]:
        return {}
    restarts = {"sampler/restarts": started["children"]["sampler"]["restarts"]}
    return restarts | (workdir.read_json(_stats_file(paths)) or {})


class Engines:
    """The engine that follows the trainer, and one for each version under evaluation."""

    def __init__(
        self,
        config: ml_collections.ConfigDict,
        policy: api.Policy,
        weights: weights_base.WeightStore,
    ):
        """Compiles with random weights, while the trainer still makes the first version."""
        self._config = config
        self._policy = policy
        self._weights = weights
        params = policy.init(jax.random.key(config.seed))
        self.following = make_engine(config, policy, params, -1, record=build.record(config))
        self.following.warm_up()
        self.following.start()
        self._pinned: collections.OrderedDict[int, engine_lib.Engine] = collections.OrderedDict()

    def follow(self) -> None:
        """Loads the newest version if it is newer than the one that serves.

        A version that must not be used is reported, and the old one goes on serving.
        """
        newest = self._weights.latest()
        if newest is None or newest <= self.following.version:
            return
        try:
            params, _ = self._weights.fetch(newest)
        except weights_base.InvalidWeights as error:
            _log.warning("weights are not used: %s", error)
            return
        self.following.load_weights(newest, params)

    def client_for(self, ticket: types.Ticket) -> client.SamplerClient:
        """The sampler of a ticket: pinned to its version, or following."""
        if ticket.policy_version is None:
            return local_client.LocalClient(self.following)
        return local_client.LocalClient(self._at(ticket.policy_version))

    def check(self) -> None:
        """Raises what ended an engine."""
        for engine in (self.following, *self._pinned.values()):
            if engine.error is not None:
                raise RuntimeError("the sampler engine failed") from engine.error

    def stats(self) -> dict[str, float]:
        """By the names of metrics/names.py, since the start of this process."""
        found = self.following.stats()
        return {
            "sampler/compilations": found["compilations"],
            "sampler/swaps": found["swaps"],
            "sampler/swap_s": found["swap_seconds"] / max(1, found["swaps"]),
            "sampler/active_slots": found["active_slots"],
            "speed/sampler_tokens_per_s": found["tokens"] / max(1e-9, found["busy_seconds"]),
        }

    def stop(self) -> None:
        for engine in (self.following, *self._pinned.values()):
            engine.stop()

    def _at(self, version: int) -> engine_lib.Engine:
        if version not in self._pinned:
            params, _ = self._weights.fetch(version)
            while len(self._pinned) >= _PINNED_ENGINES:
                self._pinned.popitem(last=False)[1].stop()
            engine = make_engine(self._config, self._policy, params, version)
            engine.start()
            self._pinned[version] = engine
        self._pinned.move_to_end(version)
        return self._pinned[version]


async def _serve(
    config: ml_collections.ConfigDict,
    world: world_lib.World,
    engines: Engines,
    store: store_lib.TrajectoryStore,
    paths: workdir.Workdir,
    *,
    run_id: str,
    stopping: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    loop = scheduler.Scheduler(
        sink=store.write,
        make_env=world.make_env,
        client_for=engines.client_for,
        chat=world.language,
        limits=world.limits,
        max_in_flight=config.rollout.max_in_flight,
        heartbeat=beat,
        tickets=ticket_files.FileTickets(paths.tickets, run_id),
    )
    follower = asyncio.create_task(_follow(engines, paths))
    try:
        while engines.following.version < 0 and not stopping() and not follower.done():
            beat()
            await asyncio.sleep(_FOLLOW_S)
        await loop.run(lambda: stopping() or follower.done())
        if follower.done():
            follower.result()
    finally:
        follower.cancel()


async def _follow(engines: Engines, paths: workdir.Workdir) -> None:
    next_stats = 0.0
    while True:
        await asyncio.to_thread(engines.follow)
        engines.check()
        if time.monotonic() >= next_stats:
            workdir.write_json(_stats_file(paths), engines.stats())
            next_stats = time.monotonic() + _STATS_S
        await asyncio.sleep(_FOLLOW_S)


def _stats_file(paths: workdir.Workdir) -> pathlib.Path:
    return paths.logs / "sampler.json"
