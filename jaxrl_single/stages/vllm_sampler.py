"""A vLLM server in the place of our engine: it follows the trainer and samples the episodes.

vLLM serves one version at a time. An evaluation asks for a version that may not be the newest: its
turns go to vLLM while that serves the version, and to an engine of ours from then on.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import pathlib
import threading
import time
from collections.abc import Callable

import jax
import ml_collections

from jaxrl_single import types, wire, workdir
from jaxrl_single.models import api
from jaxrl_single.rollout import client as client_lib
from jaxrl_single.rollout import vllm_client
from jaxrl_single.stages import build
from jaxrl_single.stages import engines as engines_lib
from jaxrl_single.weights import base as weights_base
from jaxrl_single.weights import vllm

_RETRY_S = 1.0  # between tries of a server that does not answer
_STOP_S = 5.0  # for a loading to end
_log = logging.getLogger(__name__)


class Unsuited(ValueError):
    """vLLM can't give what the run needs; the message says what and what to do."""


class VllmSampler:
    """The side of an engine that `engines.Engines` needs: weights, numbers, the end.

    Loading goes on in a thread of its own. A server that is not up yet is waited for; one that was
    started again gets the newest weights again.

    Args:
      server: of the weights.
      make_client: makes the client of the episodes on the same server; gets what it calls when the
        server serves weights that nobody has loaded.
      patience_s: a server that does not answer for so long is an error.

    Attributes:
      client: of the episodes.
      version: that the server serves; -1 before the first.
      error: what ended it, None while it is well.
    """

    def __init__(
        self,
        server: vllm.VllmServer,
        make_client: Callable[[Callable[[], None]], vllm_client.VllmClient],
        *,
        patience_s: float,
    ):
        self.client = make_client(self.restore)
        self.version = -1
        self.error: BaseException | None = None
        self._server = server
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._next: tuple[int, weights_base.Params] | None = None
        self._last: tuple[int, weights_base.Params] | None = None
        self._stopping = False
        self._swaps, self._swap_seconds = 0, 0.0
        self._thread = threading.Thread(target=self._loop, name="vllm-weights", daemon=True)

    def start(self) -> None:
        """Begins to follow; call it once."""
        self._thread.start()

    def load_weights(self, version: int, params: weights_base.Params) -> None:
        """Samples with params as soon as the server has them; of several calls the last counts."""
        with self._changed:
            self._next = (version, params)
            self._changed.notify()

    def restore(self) -> None:
        """Loads the newest weights again if the server has lost them, being a new process."""
        with self._changed:
            self._next = self._next or self._last
            self._changed.notify()

    def stats(self) -> dict[str, float]:
        """As `Engine.stats`, as far as vLLM is seen from here."""
        return {
            "compilations": 0,
            "swaps": self._swaps,
            "swap_seconds": self._swap_seconds,
            "active_slots": self.client.num_running,
            "tokens": self.client.num_tokens,
            "busy_seconds": self.client.busy_seconds,
        }

    def stop(self) -> None:
        """Stops following. The server goes on; it belongs to whoever started it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(_STOP_S)

    def _loop(self) -> None:
        while not self._stopping:
            with self._changed:
                self._changed.wait_for(lambda: self._next or self._stopping)
                job, self._next = self._next, None
            if job is None:
                return
            try:
                self._load(*job)
            except Exception as error:
                if self.version >= 0 and not isinstance(error, vllm.ServerLost):
                    _log.warning("version %d is not used: %s", job[0], error)
                    continue
                self.error = error
                return

    def _load(self, version: int, params: weights_base.Params) -> None:
        began = time.perf_counter()
        deadline = time.monotonic() + self._patience_s
        while not self._stopping:
            try:
                if self._server.version() == version == self.version:
                    return  # somebody else has restored it
                self._server.load(version, params)
                break
            except vllm.ServerLost as error:
                if time.monotonic() > deadline:
                    raise
                _log.info("waiting for vLLM: %s", error)
                time.sleep(_RETRY_S)
        self.version, self._last = version, (version, params)
        self._swaps += 1
        self._swap_seconds += time.perf_counter() - began


class PinnedClient:
    """Samples one version: by vLLM while it serves that, then by an engine of ours."""

    def __init__(self, engines: engines_lib.Engines, version: int):
        self._engines = engines
        self._version = version
        self._own: engines_lib.EngineClient | None = None

    async def generate(self, request: wire.Request) -> wire.Completion:
        """See `client.SamplerClient`."""
        vllm_sampler = self._engines.following
        if self._own is None and vllm_sampler.version == self._version:
            plain = dataclasses.replace(request, record=False)
            found = await vllm_sampler.client.generate(plain)
            if set(found.policy_versions) <= {self._version}:
                return found
        if self._own is None:
            self._own = engines_lib.EngineClient(self._engines, self._version)
        return await self._own.generate(request)

    async def release(self, session: str) -> None:
        """See `client.SamplerClient`."""
        await self._engines.following.client.release(session)
        if self._own is not None:
            await self._own.release(session)


class VllmEngines(engines_lib.Engines):
    """`Engines` whose `following` is a VllmSampler."""

    def client_for(self, ticket: types.Ticket) -> client_lib.SamplerClient:
        """See `engines.Engines`."""
        if ticket.policy_version is None:
            return self.following.client
        return PinnedClient(self, ticket.policy_version)

    async def close_clients(self) -> None:
        """See `engines.Engines`."""
        await self.following.client.close()


def make(
    config: ml_collections.ConfigDict, paths: workdir.Workdir, policy: api.Policy
) -> VllmSampler:
    """The sampler on the server of `config.vllm`; writes the checkpoint that it starts from.

    Raises:
      Unsuited: the algorithm reads what vLLM does not record.
    """
    _check_needs(build.algorithm(config).needs, policy.config.vocab_size)
    context_length = config.env.max_tokens
    directory = pathlib.Path(config.vllm.directory or paths.root / "vllm")
    server = vllm.VllmServer(
        config.vllm.url, directory, policy.config, context_length=context_length
    )
    model = server.write_model(jax.device_get(policy.init(jax.random.key(config.seed))))
    _log.info("launch/vllm.sh %s starts the server", model)
    patience_s = config.rollout.sampler_patience_s
    make_client = functools.partial(
        vllm_client.VllmClient,
        config.vllm.url,
        context_length=context_length,
        vocab_size=policy.config.vocab_size,
        seed=config.seed,
        record=build.record(config),
        patience_s=patience_s,
    )
    return VllmSampler(
        server, lambda restore: make_client(on_unknown_weights=restore), patience_s=patience_s
    )


def _check_needs(needs: tuple[str, ...], vocab_size: int) -> None:
    """Refuses what an algorithm reads of each token besides its log-prob, if vLLM has it not."""
    unsuited = {"aux"}
    if vocab_size > vllm_client.MAX_ROW:
        unsuited |= {"entropies", "full"}
    found = sorted(unsuited.intersection(needs))
    if found:
        raise Unsuited(
            f"the algorithm reads {', '.join(found)}, which vLLM does not give with a vocabulary "
            f"of {vocab_size} tokens; use rollout.client=in_process or another algorithm"
        )
