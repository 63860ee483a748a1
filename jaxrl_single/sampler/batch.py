"""The sessions that an engine samples together, advanced by one thread: a piece of prefill for each
slot that needs one, and a chunk of decode steps.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import numpy as np

from jaxrl_single import wire
from jaxrl_single.sampler import checks, decode, pages, prefix, reading, slots, stops
from jaxrl_single.sampler import programs as programs_lib
from jaxrl_single.sampler import settings as settings_lib

OnTokens = Callable[[wire.Completion], None]

_COUNTED = (
    "tokens",
    "prefill_tokens",
    "shared_tokens",
    "steps",
    "slot_steps",
    "chunks",
    "prefills",
    "evictions",
    "stall_seconds",
)
_SHRINK_BELOW = 0.75  # of a smaller pool: one that was just left is not taken up again at once
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class Job:
    """A request on its way.

    Attributes:
      tokens: of the request, as many as the context holds; a copy, as the episode's list goes on
        growing.
      num_seen: sampled tokens that `stops` and `on_tokens` have seen.
    """

    request: wire.Request
    tokens: np.ndarray
    future: futures.Future
    stops: stops.StopStrings | None
    on_tokens: OnTokens | None
    num_seen: int = 0


class Batch:
    """All sessions of one engine, those without a slot among them.

    Attributes:
      version: of the weights that sample now.
      counts: numbers since the start, by the names of `Engine.stats`.
      num_waiting: sessions without a slot.
      num_held: slots that belong to a session.
    """

    def __init__(
        self,
        settings: settings_lib.Settings,
        programs: programs_lib.Programs,
        version: int,
    ):
        """programs: the device's side, with the smallest cache; version: of its weights."""
        self.version = version
        self.counts: dict[str, float] = dict.fromkeys(_COUNTED, 0)
        self._settings = settings
        self._slots = slots.Slots(settings)
        self._pages = pages.Pages(
            settings.num_slots, settings.pages_per_slot, settings.pool_sizes()
        )
        self._programs = programs
        self._jobs: dict[int, Job] = {}  # slot -> its unfinished request
        self._waiting: dict[str, Job] = {}  # by session, in order of arrival
        self._stalled_since: float | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_held(self) -> int:
        return int(self._slots.held.sum())

    def stats(self) -> dict[str, float]:
        """The counts, and how things stand; see `Engine.stats`."""
        return self.counts | {
            "active_slots": int(self._slots.active.sum()),
            "held_slots": self.num_held,
            "waiting": len(self._waiting),
            "pages": self._pages.num_pages,
            "used_pages": self._pages.num_pages - self._pages.num_free,
        }

    def unfinished(self) -> list[Job]:
        """All jobs, which are forgotten here."""
        jobs = [*self._jobs.values(), *self._waiting.values()]
        self._jobs.clear()
        self._waiting.clear()
        return jobs

    def accept(self, job: Job) -> None:
        """Takes a new request; one of a session without a slot waits for `admit`."""
        session = job.request.session
        slot = self._slots.find(session)
        waiting = self._waiting.get(session)
        if slot in self._jobs or (waiting is not None and not waiting.future.cancelled()):
            if job.future.set_running_or_notify_cancel():
                problem = f"session {session!r} has an unfinished request; it may have one"
                job.future.set_exception(ValueError(problem))
        elif slot is None:
            self._waiting[session] = job
        else:
            self._begin(job, slot)

    def admit(self) -> None:
        """Gives free slots to those who wait, in order."""
        while self._waiting and not self._slots.held.all():
            session, job = next(iter(self._waiting.items()))
            if not job.future.cancelled():
                slot = prefix.choose_slot(self._slots, self._pages, job.tokens)
                self._slots.claim(session, slot)
                self._begin(job, slot)
            del self._waiting[session]  # not before it has the slot: others ask who needs one

    def release(self, session: str) -> None:
        """Ends the session; its unfinished request is answered as "cancelled"."""
        waiting = self._waiting.pop(session, None)
        if waiting is not None and waiting.future.set_running_or_notify_cancel():
            waiting.future.set_result(wire.Completion([], [], [], [], "cancelled"))
        slot = self._slots.find(session)
        if slot is None:
            return
        if slot in self._jobs:
            self._finish(slot, "cancelled")
        self._slots.release(session)

    @property
    def can_swap(self) -> bool:
        """Whether another swap leaves time to sample: nobody is busy with reading again for one."""
        return self._settings.swap == "keep" or not self._slots.rereading

    def swap(self, version: int, serving: Any) -> None:
        """The weights of the next chunk, in their serving form."""
        if self._slots.active.any():
            self._stalled_since = time.perf_counter()
        self.version, self._programs.serving = version, serving
        prefix.drop_warm(self._slots, self._pages, lambda: False)
        self._slots.swap()

    def advance(self) -> bool:
        """One piece of prefill per slot, one chunk for all that have read their tokens.

        Returns:
          False when there was nothing to do: every session waits for its environment.
        """
        self._shrink()
        if not self._slots.active.any():
            self._stalled_since = None  # nobody has waited for the swap
            return False
        ready = self._make_room()
        waiting = self._share(ready)
        self._prefill(ready & ~waiting)
        if waiting.any():  # for what has been prefilled just now
            still = self._share(waiting)
            self._prefill(waiting & ~still)
            waiting = still
        self._decode(ready & ~waiting)
        return True

    def warm_up(self) -> None:
        """Compiles every program at every size of the cache. Before any other use."""
        nobody = np.zeros(self._settings.num_slots, np.bool_)
        for size in self._pages.sizes:
            if size > self._pages.num_pages:
                self._grow()
            for num_rows in self._settings.prefills:
                self._programs.prefill(reading.empty_prefill(self._settings, num_rows))
            if self._settings.shares or len(self._pages.sizes) > 1:
                self._programs.copy([0], [size])  # behind the pool: nothing is copied
            for num_slots in self._settings.chunk_sizes:
                self._programs.decode(self._decode_rows(np.arange(num_slots), nobody))
        while self._pages.smaller is not None:
            self._programs.resize(self._pages.smaller)
            self._pages.shrink(self._pages.smaller)

    def _begin(self, job: Job, slot: int) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        self._slots.begin(slot, job.request, job.tokens)
        in_use = -(-int(self._slots.cached[slot]) // self._settings.page_size)
        self._pages.give_back(slot, but_first=in_use)
        self._jobs[slot] = job
        if not self._slots.active[slot]:
            self._finish(slot, "length")

    def _finish(self, slot: int, reason: str, stop_reason: str | int | None = None) -> None:
        completion = self._slots.finish(slot, reason, stop_reason)
        self._jobs.pop(slot).future.set_result(completion)

    def _decode_rows(self, of_slots: np.ndarray, allowed: np.ndarray) -> decode.Rows:
        num_steps = self._settings.decode_chunk
        return reading.decode_rows(self._slots, self._pages, of_slots, allowed, num_steps)

    def _make_room(self) -> np.ndarray:
        needed = reading.pages_needed(self._slots, self._settings.decode_chunk)
        ready, evicted = prefix.make_room(self._slots, self._pages, needed, self._grow)
        self.counts["evictions"] += evicted
        return ready

    def _grow(self) -> None:
        size = self._pages.larger
        self._programs.resize(size)
        self._pages.grow(size)

    def _shrink(self) -> None:
        smaller = self._pages.smaller
        if smaller is None:
            return
        state, table = self._slots, self._pages
        if table.counts[state.held].sum() > _SHRINK_BELOW * smaller:
            return
        prefix.drop_warm(state, table, lambda: table.counts.sum() <= smaller)
        self._programs.copy(*table.shrink(smaller))
        self._programs.resize(smaller)

    def _share(self, candidates: np.ndarray) -> np.ndarray:
        """Copies what others hold; returns which candidates [S] wait for one that is reading it."""
        waiting = np.zeros_like(candidates)
        state, table, size = self._slots, self._pages.table, self._settings.page_size
        matching = np.flatnonzero(candidates & state.matching)
        receivers: set[int] = set()
        copies: list[np.ndarray] = []
        for slot in matching[np.argsort(state.touched[matching])].tolist():
            match = prefix.find(state, slot)
            waiting[slot] = match is not None and not match.ready
            state.matching[slot] = waiting[slot]
            if match is None or waiting[slot]:
                continue
            if match.source in receivers:  # its pages are not there yet
                self._copy(copies)
                receivers.clear()
            part = slice(state.cached[slot] // size, -(-match.length // size))
            copies.append(np.stack([table[match.source, part], table[slot, part]]))
            receivers.add(slot)
            self.counts["shared_tokens"] += match.length - int(state.cached[slot])
            state.share(slot, match.source, match.length)
        self._copy(copies)
        return waiting

    def _copy(self, copies: list[np.ndarray]) -> None:
        if copies:
            self._programs.copy(*np.concatenate(copies, axis=1))
            copies.clear()

    def _prefill(self, allowed: np.ndarray) -> None:
        state = self._slots
        for of_slots, rows in reading.prefill_rows(state, self._pages, allowed):
            experts = self._programs.prefill(rows)
            self.counts["prefills"] += 1
            self.counts["prefill_tokens"] += int((rows.last - rows.first).sum())
            if state.experts is not None:
                state.record_prefill(of_slots, rows, jax.device_get(experts))

    def _decode(self, allowed: np.ndarray) -> None:
        of_slots = reading.slots_of_chunk(self._slots, allowed)
        rows = self._decode_rows(of_slots, allowed)
        if not rows.active.any():
            return
        if self._stalled_since is not None:
            self._programs.wait()
            self.counts["stall_seconds"] += time.perf_counter() - self._stalled_since
            self._stalled_since = None
        sampled = self._programs.decode(rows)
        num_known = int(self._slots.lengths.sum())
        finished = self._slots.record(of_slots, rows, sampled, self.version)
        self.counts["chunks"] += 1
        self.counts["steps"] += int(sampled.steps)
        self.counts["slot_steps"] += int(sampled.steps) * len(of_slots)
        self.counts["tokens"] += int(self._slots.lengths.sum()) - num_known
        for slot in of_slots[sampled.broken].tolist():
            self._mend(slot)
        self._answer(finished)

    def _mend(self, slot: int) -> None:
        """Its logits were no distribution: the turn reads all again once, then it fails."""
        self._programs.clear(self._pages.table[slot, : self._pages.counts[slot]].tolist())
        if self._slots.clear(slot):
            return
        job, state = self._jobs.pop(slot), self._slots
        problem = checks.NotFinite(
            job.request.session,
            version=self.version,
            place=int(state.lengths[slot]),
            num_sampled=int(state.lengths[slot] - state.firsts[slot]),
        )
        self._pages.give_back(slot)
        state.end(slot)
        job.future.set_exception(problem)

    def _answer(self, finished: dict[int, bool]) -> None:
        ends: dict[int, tuple[str, str | int | None]] = {}
        for slot, stopped in finished.items():
            last = int(self._slots.new_tokens(slot)[-1])
            ends[slot] = ("stop", last) if stopped else ("length", None)
        for slot, job in self._jobs.items():
            if job.stops is None and job.on_tokens is None:
                continue
            string = self._look(slot, job)
            if string is not None:
                ends[slot] = ("stop", string)
        for slot, end in ends.items():
            self._finish(slot, *end)

    def _look(self, slot: int, job: Job) -> str | None:
        """Shows the job its new tokens; returns the stop string that ends it, if there is one."""
        tokens = self._slots.new_tokens(slot)[job.num_seen :].tolist()
        found = job.stops.find(tokens) if job.stops is not None else None
        if found is not None:
            tokens = tokens[: found[0]]
            self._slots.cut(slot, job.num_seen + found[0])
        if job.on_tokens is not None and tokens:
            try:
                job.on_tokens(self._slots.part(slot, job.num_seen))
            except Exception:
                _log.exception("session %r: on_tokens failed", job.request.session)
                job.on_tokens = None
        job.num_seen += len(tokens)
        return found[1] if found is not None else None
