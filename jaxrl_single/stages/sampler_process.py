"""The sampler process: an engine that follows the trainer's weights, for rollouts here or apart.

With `rollout.client = "in_process"` the rollout runs beside the engine; with "http" the process
serves requests over HTTP, as one of several if need be; with "vllm" a vLLM server takes the place
of the engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import pathlib
import time
from collections.abc import Callable, Sequence

import jax
import ml_collections

from jaxrl_single import types, workdir
from jaxrl_single.data import text as text_lib
from jaxrl_single.models import api
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler.service import access
from jaxrl_single.sampler.service import server as server_lib
from jaxrl_single.stages import addresses, build, rollout_process, vllm_sampler
from jaxrl_single.stages import engines as engines_lib
from jaxrl_single.stages import world as world_lib
from jaxrl_single.weights import filesystem

_FOLLOW_S = 0.02  # between looks for new weights
_STATS_S = 1.0  # between two writings of the sampler's numbers
_log = logging.getLogger(__name__)


class CannotListen(RuntimeError):
    """The sampler's address is not to be had; the message says which and what to do."""


FOR_PEOPLE = (workdir.CannotWrite, workdir.BrokenFile, CannotListen, vllm_sampler.Unsuited)


def run(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    *,
    name: str,
    stopping: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    """Serves until `stopping()`.

    Args:
      name: of this process among those of the run.

    Raises:
      RuntimeError: the engine failed.
      ValueError: the trainer's weights do not fit the model of the config.
    """
    world = world_lib.make(config, workdir.began(paths))
    engines = _make_engines(config, paths, world)
    try:
        asyncio.run(_serve(config, paths, world, engines, name, stopping=stopping, beat=beat))
    finally:
        engines.stop()


def weights_directory(config: ml_collections.ConfigDict, paths: workdir.Workdir) -> str:
    """Where versions are published; a directory outside the workdir gets one of this run's own."""
    return str(workdir.weights_directory(paths, config.weights.directory))


def make_engine(
    config: ml_collections.ConfigDict,
    policy: api.Policy,
    params: api.Params,
    version: int,
    *,
    record: types.Record = types.RECORD_NOTHING,
    text_of: Callable[[Sequence[int]], str] | None = None,
) -> engine_lib.Engine:
    """An engine of the config's shape; its context is a whole episode.

    Args:
      text_of: the text of tokens; without it the engine refuses stop strings.
    """
    return engine_lib.Engine(
        policy,
        params,
        version,
        num_slots=config.sampler.num_slots,
        cache_length=config.env.max_tokens,
        decode_chunk=config.sampler.decode_chunk,
        page_size=config.sampler.page_size,
        cache_tokens=config.sampler.cache_tokens,
        cache_sizes=tuple(config.sampler.cache_sizes),
        decode_slots=tuple(config.sampler.decode_slots),
        prefix_cache=config.sampler.prefix_cache,
        prefill_pages=tuple(config.sampler.prefill_pages),
        max_fed_tokens=config.sampler.max_fed_tokens,
        seed=config.seed,
        swap=config.sampler.swap,
        record=record,
        text_of=text_of,
    )


def read_stats(paths: workdir.Workdir) -> dict[str, float]:
    """The samplers' newest numbers by metric name, together; empty in sync mode."""
    started = (workdir.read_json(paths.processes) or {"children": {}})["children"]
    samplers = [name for name in started if name.partition("-")[0] == "sampler"]
    if not samplers:
        return {}
    restarts = {"sampler/restarts": sum(started[name]["restarts"] for name in samplers)}
    found = [workdir.read_json(_stats_file(paths, name)) for name in samplers]
    return restarts | _together([numbers for numbers in found if numbers])


def _make_engines(
    config: ml_collections.ConfigDict, paths: workdir.Workdir, world: world_lib.World
) -> engines_lib.Engines:
    """Compiles with random weights, while the trainer still makes the first version."""
    policy, _ = build.models(config, world.language.vocab_size)
    make = functools.partial(make_engine, config, policy, text_of=world.text.decode)
    weights = filesystem.FileWeights(weights_directory(config, paths), workdir.run_id_of(paths))
    record = _with_alternatives(config, build.evaluation_record(config))
    pinned = functools.partial(make, record=record)
    if config.rollout.client == "vllm":
        following = vllm_sampler.make(config, paths, policy)
        engines = vllm_sampler.VllmEngines(following, pinned, weights)
    else:
        params = policy.init(jax.random.key(config.seed))
        following = make(params, -1, record=_with_alternatives(config, build.record(config)))
        following.warm_up()
        engines = engines_lib.Engines(following, pinned, weights)
    following.start()
    return engines


def _with_alternatives(config: ml_collections.ConfigDict, record: types.Record) -> types.Record:
    """With the likeliest tokens that OpenAI's endpoints may be asked for."""
    if config.rollout.client != "http":
        return record
    return dataclasses.replace(record, topk=max(record.topk, config.sampler.top_logprobs))


async def _serve(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    world: world_lib.World,
    engines: engines_lib.Engines,
    name: str,
    *,
    stopping: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    follower = asyncio.create_task(_follow(engines, paths, name))

    def ended() -> bool:
        return stopping() or follower.done()

    try:
        while engines.following.version < 0 and not ended():
            beat()
            await asyncio.sleep(_FOLLOW_S)
        if config.rollout.client == "http":
            await _serve_http(config, paths, world.text, engines, name, ended=ended, beat=beat)
        else:
            scheduler = rollout_process.make_scheduler(
                config, paths, world, engines.client_for, beat=beat
            )
            await scheduler.run(ended)
        if follower.done():
            follower.result()
    finally:
        follower.cancel()
        await engines.close_clients()


async def _serve_http(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    text: text_lib.Text,
    engines: engines_lib.Engines,
    name: str,
    *,
    ended: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    server = server_lib.Server(
        engines,
        text,
        host=config.sampler.host,
        port=addresses.port(config, name),
        token=access.read_token(config.sampler.token_file),
        max_waiting=config.sampler.max_waiting,
        idle_s=config.sampler.idle_s,
        max_tokens_limit=config.env.max_tokens,
        model_name=config.model.path or config.model.size,
        max_top_logprobs=config.sampler.top_logprobs,
        topk=build.record(config).topk,
        tool_format=config.env.tool_format,
    )
    try:
        await server.start()
    except OSError as error:
        raise CannotListen(
            f"{name} can't listen on {config.sampler.host}:{server.port} ({error}); choose another "
            "sampler.host or sampler.port; port 0 takes any free one"
        ) from error
    try:
        url = addresses.announce(paths, name, host=config.sampler.host, port=server.port)
        _log.info("%s listens on %s", name, url)
        while not ended():
            beat()
            await asyncio.sleep(_FOLLOW_S)
    finally:
        addresses.withdraw(paths, name)
        await server.close()


async def _follow(engines: engines_lib.Engines, paths: workdir.Workdir, name: str) -> None:
    next_stats = 0.0
    while True:
        await asyncio.to_thread(engines.follow)
        engines.check()
        if time.monotonic() >= next_stats:
            workdir.write_json(_stats_file(paths, name), engines.stats())
            next_stats = time.monotonic() + _STATS_S
        await asyncio.sleep(_FOLLOW_S)


def _together(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Numbers of several samplers, by the names of metrics/names.py."""
    if not found:
        return {}

    def total(name: str) -> float:
        return sum(numbers[name] for numbers in found)

    together = {
        "sampler/compilations": total("compilations"),
        "sampler/swaps": total("swaps"),
        "sampler/swap_s": total("swap_seconds") / max(1, total("swaps")),
        "sampler/active_slots": total("active_slots"),
        "speed/sampler_tokens_per_s": sum(
            numbers["tokens"] / max(1e-9, numbers["busy_seconds"]) for numbers in found
        ),
    }
    if all("stall_seconds" in numbers for numbers in found):  # not seen from outside of vLLM
        together["sampler/stall_s"] = total("stall_seconds") / max(1, total("swaps"))
    return together


def _stats_file(paths: workdir.Workdir, name: str) -> pathlib.Path:
    return paths.logs / f"{name}.json"
