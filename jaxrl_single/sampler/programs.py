"""The device's side of an engine: its weights, its cache and the programs that use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single import types
from jaxrl_single.models import api
from jaxrl_single.sampler import decode

_COPIES = 32  # pages per dispatch; a static shape


class Programs:
    """Runs the programs of sampler/decode.py on one device.

    Attributes:
      serving: the weights in the form that prefill and decode read.
    """

    def __init__(
        self,
        policy: api.Policy,
        params: api.Params,
        *,
        num_pages: int,
        page_size: int,
        num_steps: int,
        record: types.Record,
    ):
        """Takes a copy of params; num_steps and record: of a chunk."""
        self._policy = policy
        self._num_steps = num_steps
        self._record = record
        self._device = jax.local_devices()[0]
        self.serving = self.form(params)
        # Bound to the device as the weights are: programs are compiled once for both.
        self._cache = jax.device_put(policy.init_cache(num_pages, page_size), self._device)

    def form(self, params: api.Params) -> Any:
        """The serving form of a copy of params: the trainer donates its own to its next step.

        It takes a while and touches nothing of the engine's, so any thread may call it.
        """
        copy = jax.tree.map(
            # device_put alone may share numpy's memory or the trainer's buffer.
            lambda leaf: jax.device_put(jnp.array(leaf, copy=True), self._device),
            params,
        )
        return jax.block_until_ready(self._policy.serving(copy))

    def prefill(self, rows: decode.PrefillRows) -> jax.Array:
        """Reads the rows; returns their experts [R, B, L, k]."""
        self._cache, experts = decode.prefill(self._policy, self.serving, self._cache, rows)
        return experts

    def decode(self, rows: decode.Rows) -> decode.Sampled:
        """Takes a chunk of steps; the result is on the host."""
        self._cache, sampled = decode.decode_chunk(
            self._policy,
            self.serving,
            self._cache,
            rows,
            num_steps=self._num_steps,
            record=self._record,
        )
        return jax.device_get(sampled)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies pages; no page is a source and a target, or a target twice."""
        nowhere = np.iinfo(np.int32).max
        for begin in range(0, len(sources), _COPIES):
            pairs = np.full((2, _COPIES), nowhere, np.int32)
            part = slice(begin, begin + _COPIES)
            count = len(sources[part])
            pairs[0], pairs[0, :count], pairs[1, :count] = 0, sources[part], targets[part]
            self._cache = decode.copy_pages(self._policy, self._cache, pairs[0], pairs[1])

    def clear(self, pages: Sequence[int]) -> None:
        """Zeros in pages: what lies behind the tokens of a page's next owner must be finite."""
        for begin in range(0, len(pages), _COPIES):
            part = np.full(_COPIES, np.iinfo(np.int32).max, np.int32)
            part[: len(pages[begin : begin + _COPIES])] = pages[begin : begin + _COPIES]
            self._cache = decode.clear_pages(self._cache, part)

    def resize(self, num_pages: int) -> None:
        """The pool keeps its first pages."""
        self._cache = decode.resize(self._policy, self._cache, num_pages)

    def wait(self) -> None:
        """Until all that was asked for is done."""
        jax.block_until_ready(self._cache)
