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


def decode_rows(
    state: slots.Slots, table: pages.Pages, allowed: np.ndarray, num_steps: int
) -> decode.Rows:
    """The allowed slots [S] that read by decode steps.

    A slot whose next tokens but one are to be prefilled again only reads up to there: as if it
    knew no more and had one token left to sample, which `Slots.record` then does not count.
    """
    settings = state.settings
    width = state.tokens.shape[1]
    steps = np.arange(num_steps)[:, None]
    everyone = np.arange(settings.num_slots)
    active = allowed & (state.next_reading == slots.FED)
    until = state.lengths.copy()
    behind = np.flatnonzero(active & (state.lengths - state.cached > 1))
    until[behind] = state.read_until(behind)
    owner, index = table.map()
    return decode.Rows(
        tokens=state.tokens[everyone, np.minimum(state.cached + steps, width - 1)],
        num_known=until - state.cached,
        positions=state.cached.copy(),
        active=active,
        budgets=np.where(until < state.lengths, 1, state.budgets).astype(np.int32),
        temperatures=state.temperatures,
        seeds=state.seeds,
        tickets=state.tickets,
        attempts=state.attempts,
        turns=state.turns,
        indices=(state.lengths - state.firsts).astype(np.uint32),
        stop_tokens=state.stop_tokens,
        forced=_forced(state, num_steps),
        wanted=state.wanted & active,
        limits=state.limits,
        table=table.table,
        owner=owner,
        index=index,
    )


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
