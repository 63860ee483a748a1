"""Clients of an engine in the same process; both are a `rollout.client.SamplerClient`."""

from __future__ import annotations

import asyncio
from concurrent import futures

from jaxrl_single import wire
from jaxrl_single.sampler import engine as engine_lib

_IDLE_S = 0.001  # between looks for work when every session waits for its environment


class LocalClient:
    """Of an engine that runs in its own thread (`Engine.start`)."""

    def __init__(self, engine: engine_lib.Engine):
        self._engine = engine

    async def generate(self, request: wire.Request) -> wire.Completion:
        return await asyncio.wrap_future(self._engine.submit(request))

    async def release(self, session: str) -> None:
        self._engine.release(session)


class InlineClient:
    """Runs the engine's steps on the event loop itself: one thread, the same order every time.

    Whatever is ready on the loop goes first, then the engine makes one step, and so on while a
    request is unfinished. With environments that wait for nothing outside, the whole run is a
    function of its seeds. The loop is blocked during a step.
    """

    def __init__(self, engine: engine_lib.Engine):
        self._engine = engine
        self._unfinished = 0
        self._driver: asyncio.Task | None = None

    async def generate(self, request: wire.Request) -> wire.Completion:
        answer: asyncio.Future[wire.Completion] = asyncio.get_running_loop().create_future()
        submitted = self._engine.submit(request)
        submitted.add_done_callback(lambda done: _copy_outcome(done, answer))
        self._unfinished += 1
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        try:
            return await answer
        finally:
            self._unfinished -= 1

    async def release(self, session: str) -> None:
        self._engine.release(session)

    async def _drive(self) -> None:
        while self._unfinished and self._engine.error is None:
            await asyncio.sleep(0)
            if not self._step():
                await asyncio.sleep(_IDLE_S)

    def _step(self) -> bool:
        try:
            return self._engine.step()
        except Exception:
            # Every waiting `generate` raises it: the engine gave it to all futures.
            return False


def _copy_outcome(done: futures.Future, answer: asyncio.Future) -> None:
    """Without asyncio.wrap_future, which needs two more rounds of the loop."""
    if answer.done() or done.cancelled():
        return
    if done.exception() is not None:
        answer.set_exception(done.exception())
    else:
        answer.set_result(done.result())
