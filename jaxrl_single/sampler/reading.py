"""What the programs are told to read next: rows of a prefill, rows of a chunk. numpy only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxrl_single.sampler import decode, pages, slots
from jaxrl_single.sampler import settings as settings_lib


def pages_needed(state: slots.Slots, num_steps: int) -> np.ndarray:
    """[S], of each slot for its known tokens and a chunk of `num_steps` behind them."""
    tokens = state.lengths - 1 + np.minimum(num_steps, state.budgets)
    return -(-tokens // state.settings.page_size)


def prefill_rows(
    state: slots.Slots, table: pages.Pages, allowed: np.ndarray
) -> Iterator[tuple[np.ndarray, decode.PrefillRows]]:
    """The next piece of every allowed slot [S] that reads by prefill, as (slots [R], rows).

    A piece is at most as many pages as the slot's prefill has, and rows of slots with the same
    number of pages go together. When the next item is asked for, this one counts as cached.
    """
    settings = state.settings
    how = np.where(allowed, state.next_reading, slots.FED)
    for code, num_rows in enumerate(settings.prefills, start=1):
        chosen = np.flatnonzero(how == code)
        if not len(chosen):
            continue
        begins = state.cached[chosen]
        first_pages = begins // settings.page_size
        ends = np.minimum(
            state.read_until(chosen), (first_pages + num_rows) * settings.page_size
        ).astype(np.int32)
        counts = -(-ends // settings.page_size) - first_pages
        piece = np.repeat(np.arange(len(chosen)), counts)  # of each row
        page = np.arange(len(piece)) - (np.cumsum(counts) - counts - first_pages)[piece]
        first = np.maximum(begins[piece] - page * settings.page_size, 0)
        last = np.minimum(ends[piece] - page * settings.page_size, settings.page_size)
        for begin in range(0, len(piece), num_rows):
            part = slice(begin, begin + num_rows)
            yield _prefill_batch(
                state, table, num_rows, chosen[piece[part]], page[part], first[part], last[part]
            )
        state.cached[chosen] = ends


def empty_prefill(settings: settings_lib.Settings, num_rows: int) -> decode.PrefillRows:
    """Rows that read nothing."""
    return decode.PrefillRows(
        tokens=np.zeros((num_rows, settings.page_size), np.int32),
        page_index=np.zeros(num_rows, np.int32),
        first=np.zeros(num_rows, np.int32),
        last=np.zeros(num_rows, np.int32),
        table=np.zeros((num_rows, settings.pages_per_slot), np.int32),
    )


def _prefill_batch(
    state: slots.Slots,
    table: pages.Pages,
    num_rows: int,
    of_slots: np.ndarray,
    page: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
) -> tuple[np.ndarray, decode.PrefillRows]:
    size = state.settings.page_size
    rows = empty_prefill(state.settings, num_rows)
    used = slice(0, len(of_slots))
    columns = page[:, None] * size + np.arange(size)
    rows.tokens[used] = state.tokens[of_slots[:, None], columns]
    rows.page_index[used], rows.first[used], rows.last[used] = page, first, last
    rows.table[used] = table.table[of_slots]
    return of_slots, rows


def slots_of_chunk(state: slots.Slots, allowed: np.ndarray) -> np.ndarray:
    """The slots [R] of the next chunk, ascending.

    These are the allowed ones [S] that read by decode steps, and others to fill up one of the
    sizes that a chunk may have.
    """
    reads = _reads_by_steps(state, allowed)
    size = next(size for size in state.settings.chunk_sizes if size >= reads.sum())
    return np.sort(np.argsort(~reads, kind="stable")[:size])


def decode_rows(
    state: slots.Slots,
    table: pages.Pages,
    of_slots: np.ndarray,
    allowed: np.ndarray,
    num_steps: int,
) -> decode.Rows:
    """A row for each of `of_slots` [R]; those that are allowed [S] and read by steps are active.

    A slot whose next tokens but one are to be prefilled again only reads up to there: as if it
    knew no more and had one token left to sample, which `Slots.record` then does not count.
    """
    width = state.tokens.shape[1]
    steps = np.arange(num_steps)[:, None]
    active = _reads_by_steps(state, allowed)[of_slots]
    cached, lengths = state.cached[of_slots], state.lengths[of_slots]
    until = lengths.copy()
    behind = np.flatnonzero(active & (lengths - cached > 1))
    until[behind] = state.read_until(of_slots[behind])
    owner, index = table.map(of_slots)
    return decode.Rows(
        tokens=state.tokens[of_slots, np.minimum(cached + steps, width - 1)],
        num_known=until - cached,
        positions=cached,
        active=active,
        budgets=np.where(until < lengths, 1, state.budgets[of_slots]).astype(np.int32),
        temperatures=state.temperatures[of_slots],
        seeds=state.seeds[of_slots],
        tickets=state.tickets[of_slots],
        attempts=state.attempts[of_slots],
        turns=state.turns[of_slots],
        indices=(lengths - state.firsts[of_slots]).astype(np.uint32),
        stop_tokens=state.stop_tokens[of_slots],
        forced=_forced(state, num_steps)[:, of_slots],
        wanted=state.wanted[of_slots] & active,
        limits=state.limits.of(of_slots),
        table=table.table[of_slots],
        owner=owner,
        index=index,
    )


def _reads_by_steps(state: slots.Slots, allowed: np.ndarray) -> np.ndarray:
    """[S], the allowed slots whose next token is read by a decode step."""
    return allowed & (state.next_reading == slots.FED)


def _forced(state: slots.Slots, num_steps: int) -> np.ndarray:
    """i32 [num_steps, S]: what each step takes instead of a draw."""
    forced = np.full((num_steps, state.settings.num_slots), decode.NO_TOKEN, np.int32)
    for slot, tokens in state.forced.items():
        if not state.active[slot]:
            continue
        first = max(0, int(state.lengths[slot] - state.cached[slot]) - 1)
        sampled = int(state.lengths[slot] - state.firsts[slot])
        part = tokens[sampled : sampled + max(0, num_steps - first)]
        forced[first : first + len(part), slot] = part
    return forced
