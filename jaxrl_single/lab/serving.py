"""One set of weights that nobody trains: an engine for it, and the HTTP service around that."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import Callable

from jaxrl_single import types
from jaxrl_single.data import text as text_lib
from jaxrl_single.models import api
from jaxrl_single.models import config as config_lib
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler import stops
from jaxrl_single.sampler.service import server as server_lib
from jaxrl_single.weights import base as weights_base

_PAGE_SIZE = 32  # tokens
_PREFILL_PAGES = 16  # per dispatch, of one prompt or several
_DECODE_CHUNK = 8  # tokens; an ended answer keeps its slot for half a chunk on average
_LOOK_S = 0.2  # between looks whether the engine is well


def make_engine(
    config: config_lib.ModelConfig,
    params: api.Params,
    version: int,
    *,
    num_slots: int,
    cache_length: int,
    cache_sizes: tuple[float, ...],
    seed: int,
    record: types.Record = types.RECORD_NOTHING,
    text_of: stops.TextOf | None = None,
) -> engine_lib.Engine:
    """An engine for any kind of requests; see `engine.Engine` for arguments and errors."""
    return engine_lib.Engine(
        api.build_policy(config),
        params,
        version,
        num_slots=num_slots,
        cache_length=cache_length,
        page_size=_PAGE_SIZE,
        decode_chunk=_DECODE_CHUNK,
        # No more than all first prompts have together.
        prefill_pages=(min(_PREFILL_PAGES, num_slots * -(-cache_length // _PAGE_SIZE)),),
        cache_sizes=cache_sizes,
        seed=seed,
        record=record,
        text_of=text_of,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Fixed:
    """An `admission.Router` of one engine whose weights never change; it lends itself."""

    engine: engine_lib.Engine

    @property
    def following(self) -> engine_lib.Engine:
        return self.engine

    def engine_for(self, version: int | None) -> Fixed:
        """See `admission.Router`."""
        self.load(version)
        return self

    def load(self, version: int | None) -> int:
        """See `admission.Router`; there is nothing to load but what is served."""
        if version not in (None, self.engine.version):
            raise weights_base.MissingVersion(
                f"this server has version {self.engine.version} alone, not {version}"
            )
        return self.engine.version

    def stats(self) -> dict[str, float]:
        """See `admission.Router`."""
        return self.engine.stats() | {"version": self.engine.version}


async def run(
    engine: engine_lib.Engine,
    text: text_lib.Text,
    *,
    host: str,
    port: int,
    token: str | None,
    model_name: str,
    tool_format: str,
    max_top_logprobs: int,
    started: Callable[[int], None],
) -> None:
    """Serves an engine that has been started until SIGINT or SIGTERM comes.

    Args:
      host, port, token, model_name, tool_format, max_top_logprobs: see `server.Server`.
      started: called with the port once it listens.

    Raises:
      ValueError: a setting is wrong, such as a host that others reach without a token.
      OSError: the address can't be had.
      RuntimeError: the engine failed.
    """
    server = server_lib.Server(
        Fixed(engine),
        text,
        host=host,
        port=port,
        token=token,
        model_name=model_name,
        tool_format=tool_format,
        max_top_logprobs=max_top_logprobs,
    )
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        await server.start()
    except OSError as error:
        raise OSError(
            f"can't listen on {host}:{port} ({error}); choose another --port, 0 takes any free one"
        ) from error
    try:
        started(server.port)
        while not stopping.is_set() and engine.error is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _LOOK_S)
    finally:
        await server.close()
    if engine.error is not None:
        raise RuntimeError("the sampler engine failed") from engine.error
