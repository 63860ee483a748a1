"""Attention over a pool of pages: of one new token a slot, and of whole pages of new tokens.

Decode reads every page of the pool exactly once, where it lies, whoever owns it: a softmax over the
tokens of each page alone, then the partial results of a slot's pages are put together in the order
of its pages (the merging of FlashDecoding and FlashAttention, arXiv:2205.14135). So what a slot
gets depends, to the bit, neither on the size of the pool nor on where its pages lie.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_single.models import kv_cache

_MASKED = -1e30  # finite: exp of it is 0, and no inf - inf can arise


class Partial(NamedTuple):
    """Softmax attention over some of the keys, before the division.

    Attributes:
      largest: [..., 1] float32, largest score.
      total: [..., 1] float32, sum of exp(score - largest).
      mixed: [..., H] float32, sum of exp(score - largest) x value.
    """

    largest: jax.Array
    total: jax.Array
    mixed: jax.Array


def decode(
    q: jax.Array,
    cache: kv_cache.LayerCache,
    positions: jax.Array,
    table: jax.Array,
    owner: jax.Array,
    index: jax.Array,
    num_turns: jax.Array,
) -> jax.Array:
    """Attention of one query a slot to its tokens 0 .. position.

    Args:
      q: [S, K, G, H], already scaled.
      cache: k [P, K, H, B] and v [P, K, B, H].
      positions: [S] int.
      table: [S, M] int, the pages of each slot in order.
      owner: [P] int, the slot of each page.
      index: [P] int, which page of its slot it is; M where it is nobody's.
      num_turns: [] int, pages of the slot with most of them.

    Returns:
      [S, K, G, H] in the dtype of the values.
    """
    keys, values = cache
    page_size = values.shape[2]
    scores = jnp.einsum("pkgh,pkhb->pkgb", q[owner], keys, preferred_element_type=jnp.float32)
    tokens = index[:, None] * page_size + jnp.arange(page_size)[None, :]
    mask = tokens <= positions[owner][:, None]
    pages = _partial(scores, mask[:, None, None, :], values, "pkgb,pkbh->pkgh")

    def merge_next(turn: jax.Array, state: Partial) -> Partial:
        column = jax.lax.dynamic_index_in_dim(table, turn, axis=1, keepdims=False)
        merged = _merge(state, Partial(*(part[column] for part in pages)))
        return _select(turn * page_size <= positions, merged, state)

    state = jax.lax.fori_loop(0, num_turns, merge_next, _nothing(q.shape))
    return (state.mixed / state.total).astype(values.dtype)


def prefill(
    q: jax.Array,
    cache: kv_cache.LayerCache,
    page_index: jax.Array,
    table: jax.Array,
    num_turns: jax.Array,
) -> jax.Array:
    """Causal attention of pages of queries to the pages up to their own.

    Args:
      q: [R, K, B G, H], tokens before groups, already scaled.
      cache: k [P, K, H, B] and v [P, K, B, H], with the new tokens in it.
      page_index: [R] int, which page of its sequence each row is.
      table: [R, M] int, the pages of each row's sequence in order.
      num_turns: [] int, largest page_index + 1.

    Returns:
      [R, K, B G, H] in the dtype of the values.
    """
    keys, values = cache
    page_size = values.shape[2]
    groups = q.shape[2] // page_size
    columns = jnp.arange(page_size)
    places = page_index[:, None] * page_size + jnp.repeat(columns, groups)[None, :]

    def merge_next(turn: jax.Array, state: Partial) -> Partial:
        column = jax.lax.dynamic_index_in_dim(table, turn, axis=1, keepdims=False)
        scores = jnp.einsum("rkth,rkhb->rktb", q, keys[column], preferred_element_type=jnp.float32)
        mask = places[:, :, None] >= (turn * page_size + columns)[None, None, :]
        page = _partial(scores, mask[:, None], values[column], "rktb,rkbh->rkth")
        return _select(turn <= page_index, _merge(state, page), state)

    state = jax.lax.fori_loop(0, num_turns, merge_next, _nothing(q.shape))
    return (state.mixed / state.total).astype(values.dtype)


def _nothing(shape: tuple[int, ...]) -> Partial:
    narrow = jnp.zeros((*shape[:-1], 1), jnp.float32)
    return Partial(narrow + _MASKED, narrow, jnp.zeros(shape, jnp.float32))


def _partial(scores: jax.Array, mask: jax.Array, values: jax.Array, spec: str) -> Partial:
    scores = jnp.where(mask, scores, _MASKED)
    largest = scores.max(axis=-1, keepdims=True)
    weights = jnp.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    mixed = jnp.einsum(
        spec, weights.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    return Partial(largest, total, mixed)


def _merge(first: Partial, second: Partial) -> Partial:
    largest = jnp.maximum(first.largest, second.largest)
    old, new = jnp.exp(first.largest - largest), jnp.exp(second.largest - largest)
    return Partial(
        largest, first.total * old + second.total * new, first.mixed * old + second.mixed * new
    )


def _select(condition: jax.Array, yes: Partial, no: Partial) -> Partial:
    condition = jnp.expand_dims(condition, range(1, yes.mixed.ndim))
    return Partial(*(jnp.where(condition, a, b) for a, b in zip(yes, no, strict=True)))
