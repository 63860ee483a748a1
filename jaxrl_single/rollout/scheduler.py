"""Keeps a fixed number of episodes running: tickets in, trajectories out."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from jaxrl_single import types
from jaxrl_single.envs import base, user_code
from jaxrl_single.envs import chat as chat_lib
from jaxrl_single.rollout import client, episode

_log = logging.getLogger(__name__)


class TicketSource(Protocol):
    """Where tickets come from; a directory (data/ticket_files.py) or a list."""

    def poll(self) -> list[types.Ticket]:
        """New tickets, each once."""
        ...

    def done(self, ticket: types.Ticket) -> None:
        """The ticket's trajectory is safe; it need not be kept any longer."""
        ...


class Scheduler:
    """Runs episodes on one event loop.

    A failed episode is a trajectory with an error; it goes to the sink like any other, and whoever
    issued the ticket decides on a retry. A fault of the scheduler, the sink or the ticket source
    is raised.

    Args:
      sink: gets each finished trajectory, in the order in which they finish; returns when
        it is safe.
      make_env: makes the environment of one episode.
      client_for: gives the sampler for a ticket (its `policy_version` may ask for another).
      chat: turns text to ids.
      limits: of an episode.
      max_in_flight: episodes at once.
      source: recorded in the trajectories: "policy" or "script".
      heartbeat: called at least every `poll_interval_s` while the event loop is alive; what it
        raises ends the work.
      poll_interval_s: seconds between questions for new tickets.
      tickets: where `run` gets its work; `drain` needs none.

    Attributes:
      in_flight: number of episodes that run now.
      finished: number of trajectories handed to the sink, failed ones included.
      errors: number of failed ones among them.
    """

    def __init__(
        self,
        *,
        sink: Callable[[types.Trajectory], object],
        make_env: Callable[[], base.Env],
        client_for: Callable[[types.Ticket], client.SamplerClient],
        chat: chat_lib.Chat,
        limits: episode.Limits,
        max_in_flight: int,
        source: str = "policy",
        heartbeat: Callable[[], object] = lambda: None,
        poll_interval_s: float = 0.05,
        tickets: TicketSource | None = None,
    ):
        if max_in_flight < 1:
            raise ValueError(f"rollout.max_in_flight is {max_in_flight}, must be >= 1")
        self._sink = sink
        self._make_env = make_env
        self._client_for = client_for
        self._chat = chat
        self._limits = limits
        self._max_in_flight = max_in_flight
        self._source = source
        self._heartbeat = heartbeat
        self._poll_interval_s = poll_interval_s
        self._tickets = tickets
        self._waiting: list[tuple[bool, int, int, types.Ticket]] = []
        self._running: dict[str, asyncio.Task[types.Trajectory]] = {}
        self._ended: collections.deque[tuple[types.Ticket, asyncio.Task[types.Trajectory]]]
        self._ended = collections.deque()
        self._wake = asyncio.Event()  # belongs to one event loop, so each call makes its own
        self.finished = 0
        self.errors = 0

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def run(self, stop: Callable[[], bool]) -> None:
        """Works until `stop()`; episodes that run then are cancelled, their tickets stay open.

        Evaluation tickets go first, then in the order of issue.
        """
        if self._tickets is None:
            raise ValueError("a scheduler made without `tickets` can only drain")
        loop = asyncio.get_running_loop()
        user_code.contain_tasks()
        self._wake = asyncio.Event()
        next_poll = loop.time()
        try:
            while not stop():
                if loop.time() >= next_poll:
                    self._heartbeat()
                    self._queue(self._tickets.poll())
                    next_poll = loop.time() + self._poll_interval_s
                self._start()
                await self._sleep(next_poll - loop.time())
                self._deliver(self._tickets.done)
        finally:
            await self._cancel()

    async def drain(self, tickets: Sequence[types.Ticket]) -> list[types.Trajectory]:
        """Runs these tickets to their end, for `sync` mode and demonstrations.

        With a deterministic sampler and environments that never wait, the order in which the
        sink gets the trajectories is deterministic too.

        Returns:
          The trajectories in the order of `tickets`.
        """
        results: dict[str, types.Trajectory] = {}
        user_code.contain_tasks()
        self._wake = asyncio.Event()
        try:
            self._queue(tickets)
            while len(results) < len(tickets):
                self._heartbeat()
                self._start()
                await self._sleep(self._poll_interval_s)
                for ticket, trajectory in self._deliver(lambda ticket: None):
                    results[ticket.key] = trajectory
        finally:
            await self._cancel()
        return [results[ticket.key] for ticket in tickets]

    def _queue(self, tickets: Iterable[types.Ticket]) -> None:
        waiting = {ticket.key for *_, ticket in self._waiting}
        for ticket in tickets:
            # A trainer that restarts issues open tickets again; here they may still be running.
            if ticket.key not in waiting and ticket.key not in self._running:
                waiting.add(ticket.key)
                order = (ticket.split != "eval", ticket.number, ticket.attempt, ticket)
                heapq.heappush(self._waiting, order)

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._max_in_flight:
            *_, ticket = heapq.heappop(self._waiting)
            task = asyncio.get_running_loop().create_task(self._episode(ticket))
            self._running[ticket.key] = task
            # Callbacks run in the order in which the tasks end; a set of tasks has no order.
            task.add_done_callback(lambda task, ticket=ticket: self._end(ticket, task))

    def _end(self, ticket: types.Ticket, task: asyncio.Task[types.Trajectory]) -> None:
        del self._running[ticket.key]
        self._ended.append((ticket, task))
        self._wake.set()
        # Here and not when `_sleep` returns: its timer fires by the clock, and then the moment at
        # which the next episode joins the sampler's batch would not be deterministic.
        self._start()

    async def _episode(self, ticket: types.Ticket) -> types.Trajectory:
        kind = "sampler"
        try:
            sampler = self._client_for(ticket)
            kind = "env"
            with user_code.watched("making the environment", self._limits.block_s):
                env = self._make_env()
        except BaseException as error:
            return episode.failed_episode(ticket, error, kind=kind, source=self._source)
        return await episode.run_episode(
            ticket, env, sampler, self._chat, self._limits, source=self._source
        )

    async def _sleep(self, seconds: float) -> None:
        """Returns when an episode ended, at the latest after `seconds`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(seconds, 0.0))
        self._wake.clear()

    def _deliver(
        self, done: Callable[[types.Ticket], object]
    ) -> list[tuple[types.Ticket, types.Trajectory]]:
        delivered = []
        while self._ended:
            ticket, task = self._ended.popleft()
            trajectory = episode.outcome(ticket, task, source=self._source)
            self._sink(trajectory)
            done(ticket)
            self.finished += 1
            if trajectory.error is not None:
                self.errors += 1
                first_line = trajectory.error.message.partition("\n")[0]
                _log.warning(
                    "episode %s failed (%s): %s", ticket.key, trajectory.error.kind, first_line
                )
            delivered.append((ticket, trajectory))
        return delivered

    async def _cancel(self) -> None:
        self._waiting.clear()
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._ended.clear()
