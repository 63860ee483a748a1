"""Sharing of beginnings between sessions, and who gives up pages when they run out.

What a slot has read may be copied by any other: slots that sample, that wait for their environment,
and warm ones, whose session is gone. A session that begins with what another one is just reading
waits for it. The copy is exact, and so are its numbers: unless prefix_cache is "all", only tokens
that both read in the same way are shared, and always only those read by the weights that serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from jaxrl_single.sampler import pages, slots


class Match(NamedTuple):
    """The first `length` tokens of `source` are of use; it has read them all if `ready`."""

    source: int
    length: int
    ready: bool


def choose_slot(state: slots.Slots, table: pages.Pages, tokens: np.ndarray) -> int:
    """The slot for a new session: one that is warm with its tokens, else empty, else the oldest.

    Some slot must be free.
    """
    free = np.flatnonzero(~state.held)
    if state.settings.shares:
        how = state.settings.reading(0, len(tokens))
        of_use = _whole(
            np.minimum(state.common_prefix(free, tokens[:-1], how), state.cached[free]),
            len(tokens) - 1,
            state.settings.page_size,
        )
        if of_use.any():
            return int(free[of_use.argmax()])
    return int(free[np.where(table.counts[free] > 0, state.touched[free], 0).argmin()])


def find(state: slots.Slots, slot: int) -> Match | None:
    """Where to copy the beginning of the slot's tokens from; None if nobody has more of it.

    The last known token is never shared: the step that reads it gives the logits. Part of a page
    is worth a copy only if it is the end: its row would be prefilled anyway.
    """
    count, size = int(state.lengths[slot]) - 1, state.settings.page_size
    bounds = np.where(state.fresh, state.cached, 0)
    older = state.active & (state.touched < state.touched[slot])
    bounds = np.maximum(bounds, np.where(older & state.fresh, _being_prefilled(state), 0))
    bounds[slot] = 0
    head = min(count, size)
    rows = np.flatnonzero(bounds >= max(head, 1))
    tokens, reading = state.tokens[slot, :count], state.reading[slot, :count]
    rows = rows[state.common_prefix(rows, tokens[:head], reading[:head]) == head]
    if not len(rows):
        return None
    lengths = np.minimum(state.common_prefix(rows, tokens, reading), bounds[rows])
    lengths = _whole(lengths, count, size)
    ready = state.cached[rows] >= lengths
    # The longest; of those one that is ready; of those the oldest.
    best = np.lexsort((state.touched[rows], ~ready, -lengths))[0]
    if lengths[best] <= state.cached[slot]:
        return None
    return Match(int(rows[best]), int(lengths[best]), bool(ready[best]))


def make_room(
    state: slots.Slots, table: pages.Pages, needed: np.ndarray, grow: Callable[[], None]
) -> tuple[np.ndarray, int]:
    """Gives pages to active slots, older ones first; returns (who has all [S], evicted sessions).

    When pages run out, they come from warm slots, then from a larger pool, then from sessions that
    wait for their environment, at last from younger slots; of each kind the ones that have waited
    longest, or are youngest, go first. A slot that gets none waits.

    Args:
      needed: [S] pages.
      grow: makes the cache and the table larger.
    """
    short = np.flatnonzero(state.active & (table.counts < needed))
    evicted = 0
    for slot in short[np.argsort(state.touched[short])].tolist():
        missing = int(needed[slot] - table.counts[slot])
        if missing > table.num_free + _obtainable(state, table, slot):
            continue
        for victim in _victims(state, table, slot):
            if table.num_free >= missing:
                break
            if victim is None:
                grow()
                continue
            evicted += bool(state.held[victim])
            table.give_back(victim)
            state.drop(victim)
        table.take(slot, int(needed[slot]))
    return state.active & (table.counts >= needed), evicted


def drop_warm(state: slots.Slots, table: pages.Pages, until_free: Callable[[], bool]) -> None:
    """Drops warm slots, the oldest first, until it is enough."""
    for victim in _warm(state, table):
        if until_free():
            return
        table.give_back(victim)
        state.drop(victim)


def _whole(lengths: np.ndarray, count: int, size: int) -> np.ndarray:
    return np.where(lengths < count, lengths // size * size, lengths)


def _being_prefilled(state: slots.Slots) -> np.ndarray:
    """[S], the end of what each slot is prefilling; 0 where it reads by decode steps."""
    found = np.zeros(len(state.active), np.int64)
    prefilling = np.flatnonzero(state.active & (state.next_reading != slots.FED))
    found[prefilling] = state.read_until(prefilling)
    return found


def _warm(state: slots.Slots, table: pages.Pages) -> list[int]:
    return _by_age(state, ~state.held & (table.counts > 0))


def _obtainable(state: slots.Slots, table: pages.Pages, slot: int) -> int:
    younger = state.active & (state.touched > state.touched[slot])
    others = ~state.active | younger
    return int(table.counts[others].sum()) + table.sizes[-1] - table.num_pages


def _victims(state: slots.Slots, table: pages.Pages, slot: int) -> Iterator[int | None]:
    """In order; None stands for a larger pool."""
    yield from _warm(state, table)
    while table.larger is not None:
        yield None
    yield from _by_age(state, state.held & ~state.active & (table.counts > 0))
    younger = state.active & (state.touched > state.touched[slot]) & (table.counts > 0)
    yield from reversed(_by_age(state, younger))


def _by_age(state: slots.Slots, chosen: np.ndarray) -> list[int]:
    found = np.flatnonzero(chosen)
    return found[np.argsort(state.touched[found])].tolist()
