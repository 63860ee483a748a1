"""A host's view of the paged cache: who owns which page, and rows in the shapes of the programs."""

import functools

import jax
import model_lab as lab
import numpy as np

SLOTS, PAGE_SIZE, MAX_PAGES, PREFILL_ROWS = 4, 8, 4, 3


@functools.cache
def programs(size):
    """(serving parameters, prefill, decode) of the lab's policy with the lab's parameters."""
    policy = lab.policy_of(size)
    return policy.serving(lab.params_of(size)), jax.jit(policy.prefill), jax.jit(policy.decode)


class Pool:
    """A cache and the pages of its slots; `order` is the order in which pages are given out."""

    def __init__(self, size, *, num_pages=SLOTS * MAX_PAGES, order=None):
        self.size, self.policy = size, lab.policy_of(size)
        self.cache = self.policy.init_cache(num_pages, PAGE_SIZE)
        self.free = list(range(num_pages) if order is None else order)
        self.pages = {slot: [] for slot in range(SLOTS)}

    def tables(self):
        """(table [S, M], owner [P], index [P]); garbage where nothing is defined."""
        table = np.full((SLOTS, MAX_PAGES), 10**6, np.int32)
        owner = np.zeros(len(self.cache[0][0]), np.int32)
        index = np.full(len(owner), MAX_PAGES, np.int32)
        for slot, pages in self.pages.items():
            table[slot, : len(pages)] = pages
            owner[pages], index[pages] = slot, np.arange(len(pages))
        return table, owner, index

    def cover(self, slot, length):
        """Gives the slot pages for `length` tokens."""
        while len(self.pages[slot]) * PAGE_SIZE < length:
            self.pages[slot].append(self.free.pop(0))

    def prefill(self, *pieces):
        """pieces: (slot, tokens, start), each within one page. Returns the expert ids of each."""
        rows = PREFILL_ROWS
        tokens = np.full((rows, PAGE_SIZE), -12345, np.int32)
        page_index, first, last = np.full((3, rows), 7, np.int32)
        for slot, known, start in pieces:
            self.cover(slot, start + len(known))
        table, _, _ = self.tables()
        row_table = np.full((rows, MAX_PAGES), -99, np.int32)
        for r, (slot, known, start) in enumerate(pieces):
            page_index[r], first[r] = divmod(start, PAGE_SIZE)
            last[r] = first[r] + len(known)
            tokens[r, first[r] : last[r]] = known
            row_table[r] = table[slot]
        serving, prefill, _ = programs(self.size)
        self.cache, ids = prefill(serving, self.cache, tokens, page_index, first, last, row_table)
        ids = np.asarray(ids)
        return [ids[r, first[r] : last[r]] for r in range(len(pieces))]

    def decode(self, entries, *, idle=0):
        """entries: slot -> (token, position). Returns logits and expert ids of all slots."""
        tokens, positions = np.full((2, SLOTS), idle, np.int32)
        active = np.zeros(SLOTS, bool)
        for slot, (token, position) in entries.items():
            tokens[slot], positions[slot], active[slot] = token, position, True
            self.cover(slot, position + 1)
        serving, _, decode = programs(self.size)
        logits, self.cache, ids = decode(
            serving, self.cache, tokens, positions, active, *self.tables()
        )
        return np.asarray(logits), np.asarray(ids)
