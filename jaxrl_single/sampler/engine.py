"""Continuous batching over fixed slots: admit, prefill, decode a chunk, answer, swap weights.

Other threads hand requests in and read futures; everything else belongs to the one thread that
calls `step()`: the engine's own (`start`), or the caller's in inline use. Weights swap between
chunks, so one token is sampled by one version, and every token carries its version.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single import types, wire
from jaxrl_single.models import api
from jaxrl_single.sampler import checks, decode
from jaxrl_single.sampler import slots as slots_lib

SWAPS = ("keep", "recompute")
_COUNTED = (
    "tokens",
    "prefill_tokens",
    "steps",
    "chunks",
    "prefills",
    "busy_seconds",
    "swaps",
    "swap_seconds",
)


@dataclasses.dataclass(frozen=True)
class _Job:
    """A request on its way; `tokens` is a copy, as the episode's list goes on growing."""

    request: wire.Request
    tokens: np.ndarray
    future: futures.Future


class Engine:
    """Samples from one policy for any number of sessions.

    A session (an episode) keeps its slot and its cache between its turns, until it is released;
    then only what is new of a turn is prefilled. Sessions without a slot wait in order.

    Attributes:
      version: of the weights that sample now.
      error: the exception that ended the engine, None while it is well.
    """

    def __init__(
        self,
        policy: api.Policy,
        params: api.Params,
        version: int,
        *,
        num_slots: int,
        cache_length: int,
        decode_chunk: int,
        prefill_rows: int,
        prefill_lengths: tuple[int, ...],
        seed: int,
        swap: str = "keep",
        max_fed_tokens: int = 0,
        record: types.Record = types.RECORD_NOTHING,
    ):
        """Takes a copy of params.

        Args:
          num_slots: S, sessions at once; fixed, because a token's rounding depends on it.
          cache_length: C, most tokens of an episode.
          decode_chunk: tokens per dispatch; weights swap and turns begin between chunks.
          prefill_rows: R, slots per prefill dispatch.
          prefill_lengths: static widths of a prefill; longer prompts go in pieces of the widest.
          seed: of all draws.
          swap: "keep" the cache of sessions in flight when weights change, or "recompute" it
            with the new weights before their next token.
          max_fed_tokens: a turn that brings at most so many new tokens (besides its last) is read
            by decode steps instead of a prefill; cache_length for no prefill at all.
          record: what every answer holds besides its tokens.

        Raises:
          ValueError: a size is not positive, an unknown swap, or a record that the vocabulary is
            too small for.
        """
        sizes = {
            "num_slots": num_slots,
            "cache_length": cache_length,
            "decode_chunk": decode_chunk,
            "prefill_rows": prefill_rows,
            "prefill_lengths": min(prefill_lengths, default=0),
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"sampler: {name} is {size}, it must be positive")
        if swap not in SWAPS:
            raise ValueError(f"sampler.swap is {swap!r}, allowed are {SWAPS}")
        record.widths(policy.config.vocab_size)  # refuses what does not fit
        self.version = version
        self.error: BaseException | None = None
        self._policy = policy
        self._decode_chunk = decode_chunk
        self._record = record
        self._prefill_rows = prefill_rows
        self._max_fed = max_fed_tokens
        # A width beyond the cache would be padding only; if all is fed, nothing is prefilled.
        widths = sorted({min(width, cache_length) for width in prefill_lengths})
        self._widths = tuple(widths) if max_fed_tokens < cache_length - 1 else ()
        self._swap_mode = swap
        self._device = jax.local_devices()[0]
        self._params = self._placed(params)
        self._run_key = jax.device_put(jax.random.key(seed), self._device)
        self._cache = jax.device_put(policy.init_cache(num_slots, cache_length), self._device)
        self._slots = slots_lib.Slots(num_slots, cache_length)
        self._jobs: dict[int, _Job] = {}  # slot -> its unfinished request
        self._waiting: dict[str, _Job] = {}  # by session, in order of arrival
        # Shared with other threads, under the lock of `_changed`.
        self._changed = threading.Condition()
        self._inbox: collections.deque[_Job | str] = collections.deque()  # str: a released session
        self._next_weights: tuple[int, api.Params, float] | None = None  # float: when it came
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._counts: dict[str, float] = dict.fromkeys(_COUNTED, 0)

    def submit(self, request: wire.Request) -> futures.Future[wire.Completion]:
        """Hands in one turn; thread-safe. See `wire.Request`.

        An episode that fills the context gets "length": the budget is cut to what is left of
        cache_length, down to no token at all.

        Raises:
          ValueError: the request is wrong; the message names the field.
          RuntimeError: the engine failed or was stopped.
        """
        tokens = checks.request_tokens(request, vocab_size=self._policy.config.vocab_size)
        job = _Job(request, tokens, futures.Future())
        self._post(job)
        return job.future

    def release(self, session: str) -> None:
        """Frees the session's slot; thread-safe. Its unfinished request ends as "cancelled".

        Unknown sessions and ended engines are ignored, so clean-up code may call it blindly.
        """
        with contextlib.suppress(RuntimeError):
            self._post(session)

    def load_weights(self, version: int, params: api.Params) -> None:
        """Samples with a copy of params from the next chunk on; thread-safe.

        Of several calls before a chunk ends, the last counts.

        Raises:
          ValueError: params have other paths, shapes or dtypes than the engine's.
          RuntimeError: the engine failed or was stopped.
        """
        began = time.perf_counter()
        checks.same_form(self._params, params)
        placed = self._placed(params)
        with self._changed:
            self._refuse_if_ended()
            self._next_weights = (version, placed, began)
            self._changed.notify()

    def step(self) -> bool:
        """Swaps, admits, prefills one piece per slot and decodes one chunk, as far as needed.

        For inline use; never call it beside `start()`.

        Returns:
          False when there was nothing to do: every session waits for its environment.

        Raises:
          Exception: whatever ended the engine, after all futures got it too.
        """
        try:
            began = time.perf_counter()
            worked = self._swap()
            worked |= self._admit()
            self._prefill()
            worked |= self._decode()
            if worked:
                self._counts["busy_seconds"] += time.perf_counter() - began
            return worked
        except Exception as error:
            self._end(error)
            raise

    def warm_up(self) -> None:
        """Compiles every program, so that no episode waits for it. Before any other use."""
        no_rows = np.zeros(self._prefill_rows, np.int32)
        for width in self._widths:
            tokens = np.zeros((self._prefill_rows, width), np.int32)
            self._run_prefill(no_rows, tokens, no_rows, no_rows)
        self._run_chunk(self._decode_rows())

    def start(self) -> None:
        """Steps in a thread of its own until `stop`."""
        assert self._thread is None, "the engine has been started already"
        self._thread = threading.Thread(target=self._loop, name="sampler-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the engine; unfinished requests fail with RuntimeError."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._fail_all(RuntimeError("the sampler engine was stopped"))

    def stats(self) -> dict[str, float]:
        """Counts since the start, by name.

        tokens: sampled. prefill_tokens. steps: decode steps of all slots. chunks, prefills:
        dispatches. busy_seconds: in `step` with something to do. swaps; swap_seconds: from
        `load_weights` to their effect, summed. active_slots: sampling now. held_slots: owned by a
        session. waiting: sessions without a slot. compilations: programs of the sampler in this
        process.
        """
        return self._counts | {
            "active_slots": int(self._slots.active.sum()),
            "held_slots": self._slots.num_held,
            "waiting": len(self._waiting),
            "compilations": decode.num_compilations(),
        }

    def _loop(self) -> None:
        # `step` has kept the exception and given it to all futures.
        with contextlib.suppress(Exception):
            while not self._stopping:
                if self.step():
                    continue
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._inbox or self._next_weights or self._stopping
                    )

    def _post(self, item: _Job | str) -> None:
        with self._changed:
            self._refuse_if_ended()
            self._inbox.append(item)
            self._changed.notify()

    def _refuse_if_ended(self) -> None:
        if self.error is not None:
            raise RuntimeError(f"the sampler engine failed: {self.error!r}") from self.error
        if self._stopping:
            raise RuntimeError("the sampler engine was stopped")

    def _swap(self) -> bool:
        with self._changed:
            weights, self._next_weights = self._next_weights, None
        if weights is None:
            return False
        self.version, self._params, began = weights
        if self._swap_mode == "recompute":
            self._slots.forget_cache()
        self._counts["swaps"] += 1
        self._counts["swap_seconds"] += time.perf_counter() - began
        return True

    def _admit(self) -> bool:
        with self._changed:
            inbox, self._inbox = self._inbox, collections.deque()
        for item in inbox:
            if isinstance(item, str):
                self._free(item)
            else:
                self._accept(item)
        while self._waiting and self._slots.any_free:
            job = self._waiting.pop(next(iter(self._waiting)))
            if not job.future.cancelled():
                self._begin(job, self._slots.claim(job.request.session))
        return bool(inbox)

    def _accept(self, job: _Job) -> None:
        session = job.request.session
        slot = self._slots.find(session)
        if session in self._waiting or slot in self._jobs:
            job.future.set_exception(
                ValueError(f"session {session!r} has an unfinished request; it may have one")
            )
        elif slot is None:
            self._waiting[session] = job
        else:
            self._begin(job, slot)

    def _begin(self, job: _Job, slot: int) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        self._slots.begin(slot, job.request, job.tokens)
        if self._slots.active[slot]:
            self._jobs[slot] = job
        else:
            job.future.set_result(self._slots.completion(slot, "length"))

    def _free(self, session: str) -> None:
        waiting = self._waiting.pop(session, None)
        if waiting is not None and waiting.future.set_running_or_notify_cancel():
            waiting.future.set_result(wire.Completion([], [], [], [], "cancelled"))
        slot = self._slots.find(session)
        if slot is None:
            return
        if slot in self._jobs:
            completion = self._slots.completion(slot, "cancelled")
            self._jobs.pop(slot).future.set_result(completion)
        self._slots.release(session)

    def _prefill(self) -> None:
        for slots, tokens, starts, lengths in self._slots.prefill_rows(
            self._prefill_rows, self._widths, self._max_fed
        ):
            self._run_prefill(slots, tokens, starts, lengths)
            self._counts["prefills"] += 1
            self._counts["prefill_tokens"] += int(lengths.sum())

    def _decode(self) -> bool:
        rows = self._decode_rows()
        if not rows.active.any():
            return bool(self._jobs)  # long prompts are still on their way in
        sampled = jax.device_get(self._run_chunk(rows))
        finished = self._slots.record(rows, sampled, self.version)
        self._counts["chunks"] += 1
        self._counts["steps"] += int(sampled.steps)
        self._counts["tokens"] += int(sampled.counts.sum())
        for slot in finished.tolist():
            reason = "stop" if sampled.stopped[slot] else "length"
            self._jobs.pop(slot).future.set_result(self._slots.completion(slot, reason))
        return True

    def _decode_rows(self) -> decode.Rows:
        return self._slots.decode_rows(self._decode_chunk, self._max_fed)

    def _run_prefill(self, *rows: np.ndarray) -> None:
        self._cache = decode.prefill(self._policy, self._params, self._cache, *rows)

    def _run_chunk(self, rows: decode.Rows) -> decode.Sampled:
        self._cache, sampled = decode.decode_chunk(
            self._policy,
            self._params,
            self._cache,
            rows,
            self._run_key,
            num_steps=self._decode_chunk,
            record=self._record,
        )
        return sampled

    def _placed(self, params: api.Params) -> api.Params:
        """A copy on the engine's device: the trainer donates its parameters to its next step."""
        copy = jax.tree.map(
            # device_put alone may share numpy's memory or the trainer's buffer.
            lambda leaf: jax.device_put(jnp.array(leaf, copy=True), self._device),
            params,
        )
        return jax.block_until_ready(copy)

    def _end(self, error: Exception) -> None:
        with self._changed:
            self.error = error
        self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            queued = [item for item in self._inbox if isinstance(item, _Job)]
            self._inbox.clear()
        for job in (*self._jobs.values(), *self._waiting.values(), *queued):
            if not job.future.done() and (
                job.future.running() or job.future.set_running_or_notify_cancel()
            ):
                job.future.set_exception(error)
        self._jobs.clear()
        self._waiting.clear()
