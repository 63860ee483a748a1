"""The rollout process: episodes whose samplers are somewhere else, over HTTP. No jax."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import ml_collections

from jaxrl_single import store as store_lib
from jaxrl_single import types, workdir
from jaxrl_single.data import ticket_files
from jaxrl_single.rollout import client, http_client, scheduler
from jaxrl_single.sampler.service import access
from jaxrl_single.stages import addresses
from jaxrl_single.stages import world as world_lib

_LOOK_S = 0.1  # between looks for the first sampler
_log = logging.getLogger(__name__)


def run(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    *,
    stopping: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    """Runs the tickets of the workdir until `stopping()`."""
    asyncio.run(_serve(config, paths, stopping=stopping, beat=beat))


def make_scheduler(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    world: world_lib.World,
    client_for: Callable[[types.Ticket], client.SamplerClient],
    *,
    beat: Callable[[], None],
) -> scheduler.Scheduler:
    """Plays the tickets of the workdir into its store."""
    run_id = workdir.run_id_of(paths)
    store = store_lib.TrajectoryStore(paths.trajectories, run_id)
    return scheduler.Scheduler(
        sink=store.write,
        make_env=world.make_env,
        client_for=client_for,
        chat=world.language,
        limits=world.limits,
        max_in_flight=config.rollout.max_in_flight,
        heartbeat=beat,
        tickets=ticket_files.FileTickets(paths.tickets, run_id),
    )


async def _serve(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    *,
    stopping: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    urls = addresses.source(paths, config.rollout.sampler_urls)
    samplers = http_client.HttpClient(
        urls,
        token=access.read_token(config.sampler.token_file),
        patience_s=config.rollout.sampler_patience_s,
    )

    def client_for(ticket: types.Ticket) -> client.SamplerClient:
        if ticket.policy_version is None:
            return samplers
        return samplers.pinned(ticket.policy_version)

    world = world_lib.make(config, workdir.began(paths))
    try:
        # They compile first; an episode's patience is not for that.
        if not urls():
            _log.info("waiting for samplers in %s", paths.samplers)
        while not urls() and not stopping():
            beat()
            await asyncio.sleep(_LOOK_S)
        _log.info("samplers: %s", ", ".join(urls()))
        await make_scheduler(config, paths, world, client_for, beat=beat).run(stopping)
    finally:
        await samplers.close()
