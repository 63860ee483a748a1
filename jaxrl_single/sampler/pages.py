"""Which page of the cache belongs to which slot. numpy, used by one thread.

The pool of pages has one of a few sizes: each is a static shape of the programs. Free pages with
low ids go first, so that high ones become free and the pool can shrink.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NO_OWNER = -1


class Pages:
    """The table of pages of one engine.

    Attributes:
      table: i32 [S, M], the pages of each slot in order; entries from `counts` on mean nothing.
      counts: i32 [S], pages of each slot.
      num_pages: P, of the pool now.
      sizes: that the pool may have, ascending.
    """

    def __init__(self, num_slots: int, pages_per_slot: int, sizes: Sequence[int]):
        """Starts with the smallest of `sizes`; the largest must hold one full slot."""
        self.sizes = tuple(sizes)
        self.num_pages = self.sizes[0]
        self.table = np.zeros((num_slots, pages_per_slot), np.int32)
        self.counts = np.zeros(num_slots, np.int32)
        self._owner = np.full(self.sizes[-1], NO_OWNER, np.int32)

    @property
    def num_free(self) -> int:
        return self.num_pages - int(self.counts.sum())

    @property
    def larger(self) -> int | None:
        """The next size, None at the largest."""
        return next((size for size in self.sizes if size > self.num_pages), None)

    @property
    def smaller(self) -> int | None:
        """The size before, None at the smallest."""
        return max((size for size in self.sizes if size < self.num_pages), default=None)

    def take(self, slot: int, count: int) -> None:
        """Gives the slot free pages until it has `count`; there must be so many."""
        have = int(self.counts[slot])
        found = np.flatnonzero(self._owner[: self.num_pages] == NO_OWNER)[: count - have]
        assert len(found) == count - have, "the pool has too few free pages"
        self.table[slot, have:count] = found
        self._owner[found] = slot
        self.counts[slot] = count

    def give_back(self, slot: int, *, but_first: int = 0) -> None:
        """Frees the pages of the slot but its first ones."""
        self._owner[self.table[slot, but_first : self.counts[slot]]] = NO_OWNER
        self.counts[slot] = min(self.counts[slot], but_first)

    def map(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(owner, index), i32 [P] each, as `api.Policy.decode` takes them for rows of `slots` [R].

        Pages of other slots look like free ones.
        """
        pages_per_slot = self.table.shape[1]
        owner = np.zeros(self.num_pages, np.int32)
        index = np.full(self.num_pages, pages_per_slot, np.int32)
        rows, columns = np.nonzero(np.arange(pages_per_slot) < self.counts[slots, None])
        held = self.table[slots[rows], columns]
        owner[held], index[held] = rows, columns
        return owner, index

    def grow(self, num_pages: int) -> None:
        self.num_pages = num_pages

    def shrink(self, num_pages: int) -> tuple[np.ndarray, np.ndarray]:
        """Moves what lies behind the new end; returns (sources, targets) of the pages to copy.

        There must be room: no more pages in use than `num_pages`. The copies must be made before
        the pool is cut.
        """
        slots, columns = np.nonzero(np.arange(self.table.shape[1]) < self.counts[:, None])
        high = self.table[slots, columns] >= num_pages
        slots, columns = slots[high], columns[high]
        sources = self.table[slots, columns]
        targets = np.flatnonzero(self._owner[:num_pages] == NO_OWNER)[: len(sources)]
        assert len(targets) == len(sources), "more pages are in use than the smaller pool has"
        self.table[slots, columns] = targets
        self._owner[sources], self._owner[targets] = NO_OWNER, slots
        self.num_pages = num_pages
        return sources, targets.astype(np.int32)
