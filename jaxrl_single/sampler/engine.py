"""Continuous batching over fixed slots: admit, prefill, decode a chunk, answer, swap weights.

Other threads hand requests in and read futures; everything else belongs to the one thread that
calls `step()`: the engine's own (`start`), or the caller's in inline use. Weights swap between
chunks, so one token is sampled by one version, and every token carries its version.

The numbers of a request are, to the bit, a function of the request, its session's earlier turns and
the versions of the weights: other sessions, pages, sharing and eviction don't change them. There
are three exceptions: decode_slots; prefix_cache "all"; and a session that lost its pages after a
swap that kept its cache, for the old weights that had read it are gone.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from concurrent import futures
from typing import Any

import jax

from jaxrl_single import types, wire
from jaxrl_single.models import api
from jaxrl_single.sampler import batch as batch_lib
from jaxrl_single.sampler import checks, decode, stops
from jaxrl_single.sampler import programs as programs_lib
from jaxrl_single.sampler import settings as settings_lib

OnTokens = batch_lib.OnTokens


class Engine:
    """Samples from one policy for any number of sessions.

    A session (an episode) keeps its slot and its cache between its turns, until it is released;
    then only what is new of a turn is prefilled. Sessions without a slot wait in order.

    Attributes:
      error: the exception that ended the engine, None while it is well.
      vocab_size, cache_length: token ids and tokens of an episode are below and at most these.
    """

    def __init__(
        self,
        policy: api.Policy,
        params: api.Params,
        version: int,
        *,
        num_slots: int,
        cache_length: int,
        page_size: int,
        decode_chunk: int,
        prefill_pages: tuple[int, ...],
        decode_slots: tuple[int, ...] = (),
        seed: int,
        cache_tokens: int = 0,
        cache_sizes: tuple[float, ...] = (0.25, 0.5),
        swap: str = "keep",
        max_fed_tokens: int = 0,
        prefix_cache: str = "prompts",
        record: types.Record = types.RECORD_NOTHING,
        text_of: stops.TextOf | None = None,
    ):
        """Takes a copy of params.

        Args:
          num_slots: S, sessions at once; fixed, because a token's rounding depends on it.
          cache_length: C, most tokens of an episode.
          page_size: B, tokens of a page of the cache.
          decode_chunk: tokens per dispatch; weights swap and turns begin between chunks.
          prefill_pages: pages per prefill dispatch, ascending. A turn takes the smallest that
            holds its new tokens, else the largest several times.
          decode_slots: smaller numbers of slots that a chunk may be for when no more of them
            sample, so that the last of a batch don't pay for all. Each is compiled, at each size
            of the cache. With them numbers depend, within rounding, on how many sample together.
          seed: of the draws of requests that name none.
          cache_tokens: tokens that the cache holds at most; 0 = every slot full.
          cache_sizes: smaller sizes that it may have, as fractions of that; each is compiled.
          swap: "keep" the cache of sessions in flight when weights change, or "recompute" it
            with the new weights before their next token; the next swap waits until that is done.
          max_fed_tokens: a turn that brings at most so many new tokens (besides its last) is read
            by decode steps instead of a prefill; cache_length for no prefill at all.
          prefix_cache: what sessions share of each other's beginnings: "off"; "prompts", tokens
            that both would read by a prefill (or both by decode steps): no number changes; "all".
          record: what every answer holds besides its tokens.
          text_of: the text of tokens, for stop strings.

        Raises:
          ValueError: a size or choice is not allowed, the model can't give what `record` asks, or
            params hold a number that is not finite.
        """
        checks.finite(params)
        settings = settings_lib.Settings(
            num_slots=num_slots,
            cache_length=cache_length,
            page_size=page_size,
            cache_tokens=cache_tokens,
            cache_sizes=tuple(cache_sizes),
            decode_chunk=decode_chunk,
            decode_slots=tuple(decode_slots),
            prefill_pages=tuple(prefill_pages),
            max_fed_tokens=max_fed_tokens,
            prefix_cache=prefix_cache,
            swap=swap,
            seed=seed % 2**32,
            experts_read=settings_lib.experts_read(record, policy.config),
        )
        self.error: BaseException | None = None
        self.vocab_size = policy.config.vocab_size
        self.cache_length = cache_length
        self._text_of = text_of
        self._form = jax.eval_shape(lambda: params)
        self._programs = programs_lib.Programs(
            policy,
            params,
            num_pages=settings.pool_sizes()[0],
            page_size=page_size,
            num_steps=decode_chunk,
            record=record,
        )
        self._batch = batch_lib.Batch(settings, self._programs, version)
        self._counts = {"busy_seconds": 0.0, "swaps": 0, "swap_seconds": 0.0}
        # Shared with other threads, under the lock of `_changed`.
        self._changed = threading.Condition()
        self._inbox: collections.deque[batch_lib.Job | str] = collections.deque()  # str: released
        self._next_weights: tuple[int, Any, float] | None = None  # float: when they came
        self._paused = self._resumed = self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> int:
        """Of the weights that sample now."""
        return self._batch.version

    @property
    def num_waiting(self) -> int:
        """Sessions without a slot, new requests among them; any thread may ask."""
        return self._batch.num_waiting + len(self._inbox)

    @property
    def in_use(self) -> bool:
        """Whether a session waits for a slot or has one; any thread may ask."""
        return self.num_waiting > 0 or self._batch.num_held > 0

    def submit(
        self, request: wire.Request, *, on_tokens: OnTokens | None = None
    ) -> futures.Future[wire.Completion]:
        """Hands in one turn; thread-safe. See `wire.Request`.

        An episode that fills the context gets "length": the budget is cut to what is left of
        cache_length, down to no token at all.

        Args:
          on_tokens: called in the engine's thread after each chunk with what it added to the
            answer, as a completion that is "unfinished"; it must be quick.

        The future fails with checks.NotFinite if the weights compute no finite logits for it.

        Raises:
          ValueError: the request is wrong; the message names the field.
          RuntimeError: the engine failed or was stopped.
        """
        tokens = checks.request_tokens(
            request,
            vocab_size=self.vocab_size,
            has_text=self._text_of is not None,
        )
        strings = stops.StopStrings(request.stop, self._text_of) if request.stop else None
        tokens = tokens[: self.cache_length]
        job = batch_lib.Job(request, tokens, futures.Future(), strings, on_tokens)
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
          ValueError: params have other paths, shapes or dtypes than the engine's, or a number
            that is not finite; what served goes on serving.
          RuntimeError: the engine failed or was stopped.
        """
        began = time.perf_counter()
        checks.same_form(self._form, params)
        checks.finite(params)
        serving = self._programs.form(params)
        with self._changed:
            self._refuse_if_ended()
            self._next_weights = (version, serving, began)
            self._changed.notify()

    def pause(self) -> None:
        """Samples nothing after the chunk that is on its way; thread-safe.

        Requests go on being taken in, and weights loaded, until `resume`.
        """
        self._paused = True

    def resume(self) -> None:
        """Ends `pause`; thread-safe."""
        with self._changed:
            self._paused, self._resumed = False, True
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
            worked |= self._take_in()
            if not self._paused:
                worked |= self._batch.advance()
            if worked:
                self._counts["busy_seconds"] += time.perf_counter() - began
            return worked
        except Exception as error:
            with self._changed:
                self.error = error
            self._fail_all(error)
            raise

    def warm_up(self) -> None:
        """Compiles every program, so that no episode waits for it. Before any other use."""
        self._batch.warm_up()

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

        tokens: sampled. prefill_tokens. shared_tokens: copied from other sessions. steps: decode
        steps. slot_steps: each times the slots it was for, so tokens / slot_steps says how full
        they were. chunks, prefills: dispatches. evictions: sessions that lost their pages.
        busy_seconds: in `step` with something to do. swaps; swap_seconds: from `load_weights` to
        their effect, summed; stall_seconds: in which decoding stood still for a swap, what it had
        to read again included. active_slots: sampling now. held_slots: owned by a session.
        waiting: sessions without a slot. pages: of the cache now; used_pages: with tokens, those
        of ended sessions among them. compilations: programs of the sampler in this process.
        """
        return self._counts | self._batch.stats() | {"compilations": decode.num_compilations()}

    def _loop(self) -> None:
        # `step` has kept the exception and given it to all futures.
        with contextlib.suppress(Exception):
            while not self._stopping:
                if self.step():
                    continue
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._inbox or self._next_weights or self._resumed or self._stopping
                    )
                    self._resumed = False

    def _post(self, item: batch_lib.Job | str) -> None:
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
        if not (self._paused or self._batch.can_swap):
            return False
        with self._changed:
            weights, self._next_weights = self._next_weights, None
        if weights is None:
            return False
        version, serving, came = weights
        self._batch.swap(version, serving)
        self._counts["swaps"] += 1
        self._counts["swap_seconds"] += time.perf_counter() - came
        return True

    def _take_in(self) -> bool:
        count = len(self._inbox)
        for _ in range(count):
            # It leaves the inbox when it has its place: if this fails, all of the inbox is told.
            item = self._inbox[0]
            if isinstance(item, str):
                self._batch.release(item)
            else:
                self._batch.accept(item)
            self._inbox.popleft()
        self._batch.admit()
        return count > 0

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            queued = [item for item in self._inbox if isinstance(item, batch_lib.Job)]
            self._inbox.clear()
        for job in (*self._batch.unfinished(), *queued):
            if not job.future.done() and (
                job.future.running() or job.future.set_running_or_notify_cancel()
            ):
                job.future.set_exception(error)
