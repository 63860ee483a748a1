"""What is fixed for an engine: its sizes and its habits."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jaxrl_single import types
from jaxrl_single.models import config as config_lib

SWAPS = ("keep", "recompute")
PREFIX_CACHES = ("off", "prompts", "all")
FED = 0  # a way of reading: by a decode step; n > 0: by a prefill of prefill_pages[n - 1] pages


@dataclasses.dataclass(frozen=True)
class Settings:
    """See `engine.Engine` for what they do. In messages they have the names of the config.

    Attributes:
      num_slots: S.
      cache_length: C, most tokens of an episode.
      page_size: B, tokens of a page.
      cache_tokens: most tokens of all slots together; 0 = S * C.
      cache_sizes: fractions of that.
      decode_slots: fewer slots that a chunk may be for; those from S on have no effect.
      prefill_pages: ascending.
      experts_read: (layers, experts per token) to be recorded, None for nothing.
    """

    num_slots: int
    cache_length: int
    page_size: int
    cache_tokens: int
    cache_sizes: tuple[float, ...]
    decode_chunk: int
    decode_slots: tuple[int, ...]
    prefill_pages: tuple[int, ...]
    max_fed_tokens: int
    prefix_cache: str
    swap: str
    seed: int
    experts_read: tuple[int, int] | None

    def __post_init__(self):
        """Raises ValueError for what is not allowed."""
        for name in ("num_slots", "cache_length", "page_size", "decode_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"sampler.{name} is {getattr(self, name)}, it must be positive")
        pages = self.prefill_pages
        if not pages or min(pages) < 1 or list(pages) != sorted(set(pages)):
            raise ValueError(f"sampler.prefill_pages is {pages}, must be positive and ascending")
        if not all(size > 0 for size in self.decode_slots):
            raise ValueError(f"sampler.decode_slots is {self.decode_slots}, must be positive")
        if not all(0 < fraction <= 1 for fraction in self.cache_sizes):
            raise ValueError(f"sampler.cache_sizes is {self.cache_sizes}, must lie in (0, 1]")
        if self.cache_tokens and self.cache_tokens < self.cache_length:
            raise ValueError(
                f"sampler.cache_tokens is {self.cache_tokens}, but one episode may have "
                f"{self.cache_length} tokens; give at least that, or 0 for all slots full"
            )
        for name, allowed in (("swap", SWAPS), ("prefix_cache", PREFIX_CACHES)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"sampler.{name} is {getattr(self, name)!r}, allowed are {allowed}"
                )

    @property
    def pages_per_slot(self) -> int:
        """M."""
        return -(-self.cache_length // self.page_size)

    @property
    def prefills(self) -> tuple[int, ...]:
        """The prefills that can happen: none if all turns are fed."""
        return () if self.max_fed_tokens >= self.cache_length - 1 else self.prefill_pages

    @property
    def shares(self) -> bool:
        return self.prefix_cache != "off"

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Slots that a chunk may be for, ascending; the last is S."""
        fewer = {size for size in self.decode_slots if size < self.num_slots}
        return (*sorted(fewer), self.num_slots)

    def pool_sizes(self) -> tuple[int, ...]:
        """Pages that the cache may have, ascending; each holds an episode."""
        every = self.num_slots * self.pages_per_slot
        largest = min(every, -(-self.cache_tokens // self.page_size)) or every
        smaller = {math.ceil(fraction * largest) for fraction in self.cache_sizes}
        return tuple(sorted({max(size, self.pages_per_slot) for size in {largest, *smaller}}))

    def reading(self, start: int, length: int) -> int:
        """How a turn that brings the tokens start .. length - 1 reads them, but for the last.

        The last known token is always fed: the decode step that reads it gives the logits.
        """
        if length - 1 - start <= self.max_fed_tokens:
            return FED
        num_pages = (length - 2) // self.page_size - start // self.page_size + 1
        at = int(np.searchsorted(self.prefill_pages, num_pages))
        return 1 + min(at, len(self.prefill_pages) - 1)


def experts_read(record: types.Record, config: config_lib.ModelConfig) -> tuple[int, int] | None:
    """(layers, experts per token) that are recorded, None for nothing.

    Raises:
      ValueError: the model can't give what `record` asks for.
    """
    record.widths(config.vocab_size)  # refuses what does not fit
    if not record.experts:
        return None
    if not config.num_experts:
        raise ValueError("record: experts is on, but the model has none; turn it off")
    return config.num_moe_layers, config.experts_per_token
