"""What each slot of the engine holds: the host's side of the cache. numpy, used by one thread.

A slot belongs to a session from its first turn until it is released; what it holds stays useful to
others ("warm") until the next session takes it. Per-token arrays are indexed by the position in the
episode, so that a chunk of all slots is recorded by a few array operations.

How a token is read, by a prefill (and of how many pages) or by a decode step, decides its rounding.
So it is settled when the token becomes known, by what the session itself asked for and never by
what happens to be cached, and a token that must be read again is read in the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_single import wire
from jaxrl_single.sampler import decode, restrict
from jaxrl_single.sampler import settings as settings_lib

MAX_STOP_TOKENS = 8  # of a request; a static shape
FED = settings_lib.FED


class Slots:
    """All slots of one engine. Arrays are [S] unless said; the engine's parts read them freely.

    Attributes:
      active: bool, the slot has a request that is not finished.
      held: bool, the slot belongs to a session.
      matching: bool, whether others hold the beginning of its tokens is still to be found out.
      fresh: bool, all that is cached was read by the weights that serve now, and the experts that
        are written down for it are those of that reading.
      touched: i64, when the turn began, or ended; a counter.
      cached: i32, so many tokens of the episode have their keys and values in the cache.
      lengths: i32, known tokens, the sampled ones included.
      firsts: i32, known tokens when the turn began.
      starts: i32, tokens before the ones that the turn brought: those read by earlier turns.
      tokens: i32 [S, M * B], the episode.
      reading: i8 [S, M * B], how each token is read; see FED.
    """

    def __init__(self, settings: settings_lib.Settings):
        num_slots = settings.num_slots
        per_slot, per_token = (
            (num_slots,),
            (num_slots, settings.pages_per_slot * settings.page_size),
        )
        self.settings = settings
        self.active, self.held, self.matching = (np.zeros(per_slot, np.bool_) for _ in range(3))
        self.fresh = np.ones(per_slot, np.bool_)
        self.touched = np.zeros(per_slot, np.int64)
        self.cached, self.lengths, self.firsts, self.starts = (
            np.zeros(per_slot, np.int32) for _ in range(4)
        )
        self.tokens = np.zeros(per_token, np.int32)
        self.reading = np.zeros(per_token, np.int8)
        # What the turn asks for.
        self.budgets = np.zeros(per_slot, np.int32)  # tokens that it may still sample
        self.temperatures = np.ones(per_slot, np.float32)
        self.seeds, self.tickets, self.attempts, self.turns = (
            np.zeros(per_slot, np.uint32) for _ in range(4)
        )
        self.stop_tokens = np.full((num_slots, MAX_STOP_TOKENS), decode.NO_TOKEN, np.int32)
        self.limits = restrict.Limits.none(num_slots)
        self.wanted = np.zeros(per_slot, np.bool_)
        self.forced: dict[int, np.ndarray] = {}  # slot -> tokens to take instead of draws
        # What it has got.
        self._logprobs, self._untruncated, self._entropies = (
            np.zeros(per_token, np.float32) for _ in range(3)
        )
        self._versions = np.zeros(per_token, np.int32)
        experts = settings.experts_read
        self.experts = None if experts is None else np.zeros((*per_token, *experts), np.int16)
        # Tokens whose experts the turn has drawn from: they stand, whoever reads the tokens again.
        self._drawn_from = np.zeros(per_slot, np.int32)
        # Of the turn, chunk by chunk: rows of a vocabulary are too large to hold for every token.
        self._recorded: list[list[dict[str, np.ndarray]]] = [[] for _ in range(num_slots)]
        self._reused = np.zeros(per_slot, np.int32)
        self._reread = np.zeros(per_slot, np.bool_)  # the turn has begun to read again after a swap
        self._cleared = np.zeros(per_slot, np.bool_)  # of the turn, see `clear`
        self._owner: dict[str, int] = {}  # session -> slot
        self._clock = 0

    def find(self, session: str) -> int | None:
        """The session's slot, None if it has none."""
        return self._owner.get(session)

    def claim(self, session: str, slot: int) -> None:
        """Gives the session a slot that nobody holds."""
        assert not self.held[slot], "the slot belongs to a session"
        self._owner[session] = slot
        self.held[slot] = True
        self.starts[slot] = 0

    def release(self, session: str) -> None:
        """Takes the slot back; what it holds stays until the slot or its pages are needed."""
        slot = self._owner.pop(session)
        self.active[slot] = self.held[slot] = self.matching[slot] = False
        self._touch(slot)

    def begin(self, slot: int, request: wire.Request, tokens: np.ndarray) -> None:
        """Starts a turn; when its C tokens fill the context, there is nothing to sample.

        What earlier turns have read stays if the tokens extend it. Otherwise all tokens are new,
        and what the slot holds is of use like what any other slot holds.
        """
        length, start = len(tokens), int(self.starts[slot])
        if start >= length or not np.array_equal(self.tokens[slot, :start], tokens[:start]):
            start = 0
        how = self.settings.reading(start, length)
        if start or not self.settings.shares or not self.fresh[slot]:
            self._keep(slot, start)
        else:
            self._keep(slot, int(self.common_prefix([slot], tokens[:-1], how)[0]))
        self.tokens[slot, :length] = tokens
        self.reading[slot, start:] = FED
        self.reading[slot, start : length - 1] = how
        self.starts[slot], self._reread[slot], self._cleared[slot] = start, False, False
        self._drawn_from[slot] = 0
        self.lengths[slot] = self.firsts[slot] = length
        self._reused[slot] = self.cached[slot]
        self.matching[slot] = self.settings.shares and (not start or self.cached[slot] < start)
        self._ask(slot, request)
        self.active[slot] = self.budgets[slot] > 0
        self._touch(slot)

    def common_prefix(
        self, rows: np.ndarray | list[int], tokens: np.ndarray, reading: np.ndarray | int
    ) -> np.ndarray:
        """How many of `tokens` [n] each row begins with and can be shared when read as `reading`.

        It looks at what the arrays hold; whether the rows know or have cached so much is not asked.
        """
        if not len(tokens):
            return np.zeros(len(rows), np.int64)
        same = self.tokens[rows, : len(tokens)] == tokens
        if self.settings.prefix_cache == "prompts":
            same &= self.reading[rows, : len(tokens)] == reading
        return np.where(same.all(axis=1), len(tokens), same.argmin(axis=1))

    @property
    def next_reading(self) -> np.ndarray:
        """[S], how each slot reads its next token."""
        at = np.minimum(self.cached, self.tokens.shape[1] - 1)
        return self.reading[np.arange(len(at)), at]

    def read_until(self, slots: np.ndarray) -> np.ndarray:
        """Where the next tokens of `slots` cease to be read in the same way, `lengths` at most."""
        at, width = self.cached[slots], self.tokens.shape[1]
        how = self.reading[slots, np.minimum(at, width - 1)]
        columns = np.arange(width)
        ends = (self.reading[slots] != how[:, None]) & (columns >= at[:, None])
        ends |= columns >= self.lengths[slots, None]
        return np.where(ends.any(axis=1), ends.argmax(axis=1), self.lengths[slots])

    def share(self, slot: int, source: int, length: int) -> None:
        """The slot's first `length` tokens have been copied from `source`."""
        self.cached[slot] = length
        self._reused[slot] = max(self._reused[slot], min(length, self.firsts[slot]))
        if self.experts is not None:
            new = slice(self._drawn_from[slot], length)
            self.experts[slot, new] = self.experts[source, new]
            self.fresh[slot] &= self._drawn_from[slot] == 0
        if not self.active[source]:  # of an active slot it tells the age
            self._touch(source)

    @property
    def rereading(self) -> bool:
        """Whether some slot has still to read again what the last swap has made it forget."""
        return bool((self.active & self._reread & (self.cached < self.lengths - 1)).any())

    def drop(self, slot: int) -> None:
        """Its pages are gone: all is read again before the next token, in the same way."""
        self._keep(slot, 0)
        self._reused[slot] *= self.lengths[slot] > self.firsts[slot]
        self._reread[slot] = False
        self.matching[slot] = self.active[slot] and self.settings.shares

    def clear(self, slot: int) -> bool:
        """As `drop`, after its logits were no distribution: all is read again, nothing copied.

        Returns:
          False if the turn has done so before: then its tokens are to blame, and not what another
          session has left in the pages that it was given or copied.
        """
        self.drop(slot)
        self.matching[slot] = False
        again, self._cleared[slot] = not self._cleared[slot], True
        return again

    def swap(self) -> None:
        """The weights have changed; slots that nobody holds have been dropped.

        With swap "recompute" everything is read again, in the way of a session that begins with it.
        With "keep" only turns that have not sampled yet read their tokens again (once), so that
        their numbers follow from the versions of their tokens.
        """
        if self.settings.swap == "recompute":
            self.cached[:], self.starts[:], self._reread[:] = 0, 0, True
            for slot in np.flatnonzero(self.active).tolist():
                length = int(self.lengths[slot])
                self.reading[slot] = FED
                self.reading[slot, : length - 1] = self.settings.reading(0, length)
        else:
            again = self.active & (self.lengths == self.firsts) & ~self._reread
            self.cached[again] = np.minimum(self.cached, self.starts)[again]
            self._reread |= again
        self.fresh[:] = self.cached == 0
        unsampled = self.lengths == self.firsts
        self._reused[unsampled] = np.minimum(self._reused, self.cached)[unsampled]
        if self.settings.shares:
            self.matching |= self.active & self.fresh

    def record(
        self, of_slots: np.ndarray, rows: decode.Rows, sampled: decode.Sampled, version: int
    ) -> dict[int, bool]:
        """Appends a chunk (numpy arrays) sampled by `version` for `of_slots` [R].

        Returns:
          The slots that finished: whether by a stop token.
        """
        first = rows.num_known - 1
        unread = (self.lengths - self.cached)[of_slots]
        sampling = rows.active & (rows.num_known == unread)
        counts = np.where(sampling, sampled.counts, 0)  # the others were only read again
        all_steps = np.arange(len(sampled.tokens))[:, None]
        steps, row = np.nonzero((all_steps >= first) & (all_steps < first + counts))
        slots = of_slots[row]
        at = self.lengths[slots] + steps - first[row]
        self.tokens[slots, at] = sampled.tokens[steps, row]
        self._logprobs[slots, at] = sampled.logprobs[steps, row]
        self._untruncated[slots, at] = sampled.untruncated_logprobs[steps, row]
        self._entropies[slots, at] = sampled.entropies[steps, row]
        self._versions[slots, at] = version
        self._keep_rows(of_slots, sampled, first, counts)
        # A step reads one token; the newest sampled one has not been read.
        read = np.minimum(rows.num_known + np.maximum(sampled.counts - 1, 0), sampled.steps)
        read = np.where(rows.active, read, 0)
        if self.experts is not None:
            steps, row = np.nonzero(all_steps < read)
            at = self.cached[of_slots[row]] + steps
            self._write_experts(of_slots[row], at, sampled.expert_ids[steps, row])
        self.cached[of_slots] += read
        drawn = of_slots[counts > 0]
        self._drawn_from[drawn] = self.cached[drawn]
        self.lengths[of_slots] += counts
        self.budgets[of_slots] -= counts
        ended = sampling & (sampled.stopped | (self.budgets[of_slots] == 0))
        return dict(zip(of_slots[ended].tolist(), sampled.stopped[ended].tolist(), strict=True))

    def record_prefill(
        self, of_slots: np.ndarray, rows: decode.PrefillRows, experts: np.ndarray
    ) -> None:
        """Writes down the experts [R, B, L, k] of a prefill's tokens."""
        columns = np.arange(self.settings.page_size)
        row, column = np.nonzero((columns >= rows.first[:, None]) & (columns < rows.last[:, None]))
        at = rows.page_index[row] * self.settings.page_size + column
        self._write_experts(of_slots[row], at, experts[row, column])

    def new_tokens(self, slot: int) -> np.ndarray:
        """What the turn has sampled."""
        return self.tokens[slot, self.firsts[slot] : self.lengths[slot]]

    def part(self, slot: int, first: int) -> wire.Completion:
        """What the turn has sampled from its token `first` on, with finish reason "unfinished"."""
        begin = int(self.firsts[slot])
        count = int(self.lengths[slot]) - begin
        columns = slice(begin + first, begin + count)
        return self._sampled(slot, columns, "unfinished", **self._rows(slot, first, count))

    def cut(self, slot: int, count: int) -> None:
        """Forgets what the turn has sampled after its first `count` tokens."""
        self.lengths[slot] = self.firsts[slot] + count

    def finish(
        self, slot: int, finish_reason: str, stop_reason: str | int | None = None
    ) -> wire.Completion:
        """Ends the turn; returns what it has sampled."""
        turn = slice(self.firsts[slot], self.lengths[slot])
        self._keep(slot, int(self.lengths[slot]) - 1)
        answer = self._sampled(
            slot,
            turn,
            finish_reason,
            stop_reason=stop_reason,
            num_cached_tokens=int(self._reused[slot]),
            **self._rows(slot, 0, turn.stop - turn.start),
            **self._read_experts(slot),
        )
        if turn.stop > turn.start:  # else the tokens that the turn brought were not read
            self.starts[slot] = turn.stop - 1
        self.end(slot)
        return answer

    def end(self, slot: int) -> None:
        """The turn has had its answer, or will get none."""
        self.active[slot] = self.matching[slot] = False
        self.limits.clear(slot)
        self._recorded[slot] = []
        self._touch(slot)

    def _ask(self, slot: int, request: wire.Request) -> None:
        room = self.settings.cache_length - int(self.lengths[slot])
        self.budgets[slot] = min(request.max_new_tokens, room)
        self.temperatures[slot] = request.temperature or 1.0  # a greedy slot's distribution is at 1
        self.seeds[slot] = self.settings.seed if request.seed is None else request.seed
        self.tickets[slot] = request.ticket
        self.attempts[slot] = request.attempt
        self.turns[slot] = request.turn
        self.stop_tokens[slot] = decode.NO_TOKEN
        self.stop_tokens[slot, : len(request.stop_token_ids)] = request.stop_token_ids
        self.limits.put(slot, request)
        self.wanted[slot] = request.record
        self.forced.pop(slot, None)
        if request.forced_tokens:
            self.forced[slot] = np.asarray(request.forced_tokens, np.int32)

    def _keep(self, slot: int, count: int) -> None:
        """Of what is cached, the first `count` tokens."""
        self.cached[slot] = min(self.cached[slot], count)
        self.fresh[slot] |= self.cached[slot] == 0

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self.touched[slot] = self._clock

    def _keep_rows(
        self,
        of_slots: np.ndarray,
        sampled: decode.Sampled,
        first: np.ndarray,
        counts: np.ndarray,
    ) -> None:
        if not sampled.recorded:
            return
        for row in np.flatnonzero(counts * self.wanted[of_slots]).tolist():
            steps = slice(first[row], first[row] + counts[row])
            chunk = {name: array[steps, row].copy() for name, array in sampled.recorded.items()}
            self._recorded[of_slots[row]].append(chunk)

    def _sampled(
        self, slot: int, columns: slice, finish_reason: str, **further: Any
    ) -> wire.Completion:
        return wire.Completion(
            tokens=self.tokens[slot, columns].tolist(),
            logprobs=self._logprobs[slot, columns].tolist(),
            entropies=self._entropies[slot, columns].tolist(),
            policy_versions=self._versions[slot, columns].tolist(),
            finish_reason=finish_reason,
            untruncated_logprobs=self._untruncated[slot, columns].tolist(),
            **further,
        )

    def _rows(self, slot: int, first: int, end: int) -> dict[str, list]:
        """The recorded rows of the turn's tokens first .. end - 1, by name."""
        found: dict[str, list] = {}
        at = 0  # of the chunk's first token in the turn
        for chunk in self._recorded[slot]:
            for name, rows in chunk.items():
                size = len(rows)
                if at + size > first:  # a stream asks for the newest chunk only, again and again
                    part = rows[max(first - at, 0) : max(end - at, 0)]
                    found.setdefault(name, []).extend(part.tolist())
            at += size
        return found

    def _write_experts(self, of_tokens: np.ndarray, at: np.ndarray, experts: np.ndarray) -> None:
        """Of tokens [N] that have been read, by slot and place."""
        new = at >= self._drawn_from[of_tokens]
        self.experts[of_tokens[new], at[new]] = experts[new]
        self.fresh[of_tokens[~new]] = False

    def _read_experts(self, slot: int) -> dict[str, Any]:
        if self.experts is None:
            return {}
        start = int(self.starts[slot])
        experts = self.experts[slot, start : self.cached[slot]]
        return {"expert_start": start, "expert_ids": experts.tolist()}
