"""What each slot of the engine holds: the host's side of the cache. numpy, used by one thread.

A slot belongs to a session from its first turn until it is released. Per-token arrays are indexed
by the position in the episode, so that a chunk of all slots is recorded by a few array operations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxrl_single import wire
from jaxrl_single.sampler import decode

MAX_STOP_TOKENS = 8  # of a request; a static shape

# slots [R], tokens [R, P], starts [R], lengths [R], as `api.Policy.prefill` takes them
PrefillRows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Slots:
    """All slots of one engine.

    Attributes:
      active: [S], the slot has a request that is not finished.
      cached: [S], so many tokens of the episode have their keys and values in the cache.
    """

    def __init__(self, num_slots: int, cache_length: int):
        per_slot, per_token = (num_slots,), (num_slots, cache_length)
        self.cache_length = cache_length
        self.active = np.zeros(per_slot, np.bool_)
        self.cached = np.zeros(per_slot, np.int32)
        self._lengths = np.zeros(per_slot, np.int32)  # known tokens, the sampled ones included
        self._firsts = np.zeros(per_slot, np.int32)  # known tokens when the turn began
        self._budgets = np.zeros(per_slot, np.int32)  # tokens that the turn may still sample
        self._temperatures = np.ones(per_slot, np.float32)
        self._tickets = np.zeros(per_slot, np.uint32)
        self._attempts = np.zeros(per_slot, np.uint32)
        self._turns = np.zeros(per_slot, np.uint32)
        self._stop_tokens = np.full((num_slots, MAX_STOP_TOKENS), decode.NO_TOKEN, np.int32)
        self._tokens = np.zeros(per_token, np.int32)
        self._logprobs = np.zeros(per_token, np.float32)
        self._entropies = np.zeros(per_token, np.float32)
        self._versions = np.zeros(per_token, np.int32)
        # Of the turn, chunk by chunk: rows of a vocabulary are too large to hold for every token.
        self._recorded: list[list[dict[str, np.ndarray]]] = [[] for _ in range(num_slots)]
        self._owner: dict[str, int] = {}  # session -> slot
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def any_free(self) -> bool:
        return bool(self._free)

    @property
    def num_held(self) -> int:
        """Slots that belong to a session."""
        return len(self._owner)

    def find(self, session: str) -> int | None:
        """The session's slot, None if it has none."""
        return self._owner.get(session)

    def claim(self, session: str) -> int:
        """Gives the session a slot; there must be a free one."""
        slot = self._owner[session] = self._free.pop()
        self.cached[slot] = 0
        return slot

    def release(self, session: str) -> None:
        """Takes the slot back; what it holds is dead."""
        slot = self._owner.pop(session)
        self.active[slot] = False
        self._free.append(slot)

    def begin(self, slot: int, request: wire.Request, tokens: np.ndarray) -> None:
        """Starts a turn. What the cache holds is kept if the tokens extend it, all or nothing.

        Args:
          tokens: request.tokens; when they fill the context, there is nothing to sample.
        """
        tokens = tokens[: self.cache_length]
        length, cached = len(tokens), self.cached[slot]
        extends = cached < length and np.array_equal(self._tokens[slot, :cached], tokens[:cached])
        if not extends:
            self.cached[slot] = 0
        self._tokens[slot, :length] = tokens
        self._lengths[slot] = self._firsts[slot] = length
        self._budgets[slot] = min(request.max_new_tokens, self.cache_length - length)
        self._temperatures[slot] = request.temperature
        self._tickets[slot] = request.ticket
        self._attempts[slot] = request.attempt
        self._turns[slot] = request.turn
        self._recorded[slot] = []
        self._stop_tokens[slot] = decode.NO_TOKEN
        self._stop_tokens[slot, : len(request.stop_token_ids)] = request.stop_token_ids
        self.active[slot] = self._budgets[slot] > 0

    def forget_cache(self) -> None:
        """Every slot is prefilled again before it samples its next token."""
        self.cached[:] = 0

    def prefill_rows(
        self, num_rows: int, widths: tuple[int, ...], max_fed: int
    ) -> Iterator[PrefillRows]:
        """The next piece of every active slot that misses more than `max_fed` tokens in its cache.

        The last known token is never prefilled: the decode step that reads it gives the logits.
        What is cut where depends on the slot alone, and so do its numbers: a piece has the
        narrowest of `widths` that holds what is missing, else the widest.

        Args:
          num_rows: R, of each batch; rows that are not needed have length 0.
          widths: allowed P, ascending.
        """
        missing = np.where(self.active, self._lengths - 1 - self.cached, 0)
        pieces = np.where(missing > max_fed, np.minimum(missing, max(widths, default=0)), 0)
        bucket = np.searchsorted(widths, pieces)
        for index, width in enumerate(widths):
            needing = np.flatnonzero((pieces > 0) & (bucket == index))
            for begin in range(0, len(needing), num_rows):
                yield self._prefill_batch(
                    needing[begin : begin + num_rows], num_rows, width, pieces
                )

    def decode_rows(self, num_steps: int, max_fed: int) -> decode.Rows:
        """The active slots that miss at most `max_fed` tokens (besides the last) in their cache."""
        unread = self._lengths - self.cached
        steps = np.arange(num_steps)[:, None]
        at = np.minimum(self.cached + steps, self.cache_length - 1)
        return decode.Rows(
            tokens=self._tokens[np.arange(len(unread)), at],
            num_known=unread,
            positions=self.cached.copy(),
            active=self.active & (unread - 1 <= max_fed),
            budgets=self._budgets.copy(),
            temperatures=self._temperatures,
            tickets=self._tickets,
            attempts=self._attempts,
            turns=self._turns,
            indices=(self._lengths - self._firsts).astype(np.uint32),
            stop_tokens=self._stop_tokens,
        )

    def record(self, rows: decode.Rows, sampled: decode.Sampled, version: int) -> np.ndarray:
        """Appends a chunk (numpy arrays) sampled by `version`; returns the slots that finished."""
        counts, first = sampled.counts, rows.num_known - 1
        steps = np.arange(len(sampled.tokens))[:, None]
        steps, slots = np.nonzero((steps >= first) & (steps < first + counts))
        at = self._lengths[slots] + steps - first[slots]
        self._tokens[slots, at] = sampled.tokens[steps, slots]
        self._logprobs[slots, at] = sampled.logprobs[steps, slots]
        self._entropies[slots, at] = sampled.entropies[steps, slots]
        self._versions[slots, at] = version
        self._keep_rows(sampled, first)
        self._lengths += counts
        self._budgets -= counts
        # A step reads one token; the newest sampled one has not been read.
        read = np.minimum(rows.num_known + np.maximum(counts - 1, 0), sampled.steps)
        self.cached += np.where(rows.active, read, 0)
        finished = np.flatnonzero(rows.active & (sampled.stopped | (self._budgets == 0)))
        self.active[finished] = False
        return finished

    def completion(self, slot: int, finish_reason: str) -> wire.Completion:
        """What the slot has sampled in its turn."""
        turn = slice(self._firsts[slot], self._lengths[slot])
        return wire.Completion(
            tokens=self._tokens[slot, turn].tolist(),
            logprobs=self._logprobs[slot, turn].tolist(),
            entropies=self._entropies[slot, turn].tolist(),
            policy_versions=self._versions[slot, turn].tolist(),
            finish_reason=finish_reason,
            **{
                name: np.concatenate([chunk[name] for chunk in self._recorded[slot]]).tolist()
                for name in (self._recorded[slot][0] if self._recorded[slot] else ())
            },
        )

    def _keep_rows(self, sampled: decode.Sampled, first: np.ndarray) -> None:
        for slot in np.flatnonzero(sampled.counts).tolist() if sampled.recorded else ():
            steps = slice(first[slot], first[slot] + sampled.counts[slot])
            chunk = {name: array[steps, slot].copy() for name, array in sampled.recorded.items()}
            self._recorded[slot].append(chunk)

    def _prefill_batch(
        self, batch: np.ndarray, num_rows: int, width: int, pieces: np.ndarray
    ) -> PrefillRows:
        used = len(batch)
        slots, starts, lengths = (np.zeros(num_rows, np.int32) for _ in range(3))
        tokens = np.zeros((num_rows, width), np.int32)
        slots[:used], starts[:used], lengths[:used] = batch, self.cached[batch], pieces[batch]
        at = np.minimum(starts[:used, None] + np.arange(width), self.cache_length - 1)
        tokens[:used] = self._tokens[batch[:, None], at]
        self.cached[batch] += pieces[batch]
        return slots, tokens, starts, lengths
