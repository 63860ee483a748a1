"""Attention over a pool of pages: of one new token a slot, and of whole pages of new tokens.

Decode reads every page of the pool exactly once, where it lies, whoever owns it; then the sums over
a slot's pages are taken in the order of its pages (as the parts of a long row are in FlashDecoding
and FlashAttention, arXiv:2205.14135). So what a slot gets depends, to the bit, neither on the size
of the pool nor on where its pages lie.

What a page holds behind the tokens of its owner is multiplied by 0: it must be finite.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_single.models import kv_cache, platform

_MASKED = -1e30  # finite: exp of it is 0, and no inf - inf can arise


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
    used = jnp.arange(table.shape[1])[None, :] * page_size <= positions[:, None]
    scores = jnp.einsum("pkgh,pkhb->pkgb", q[owner], keys, preferred_element_type=jnp.float32)
    tokens = index[:, None] * page_size + jnp.arange(page_size)[None, :]
    mask = jnp.where(tokens <= positions[owner][:, None], 0.0, _MASKED)
    # Adding a mask and finishing each array before the next makes loops that XLA:CPU vectorises.
    scores = platform.separate(scores + mask[:, None, None, :])
    largest = jnp.where(used[:, :, None, None], scores.max(axis=-1)[table], _MASKED).max(axis=1)
    weights = platform.separate(jnp.exp(scores - platform.separate(largest[owner])[..., None]))
    totals = weights.sum(axis=-1)
    mixed = jnp.einsum(
        "pkgb,pkbh->pkgh", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
    )

    def add_next(turn: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        pages = jax.lax.dynamic_index_in_dim(table, turn, axis=1, keepdims=False)
        here = turn * page_size <= positions
        return tuple(
            total + jnp.where(jnp.expand_dims(here, range(1, total.ndim)), part[pages], 0)
            for total, part in zip(sums, (mixed, totals), strict=True)
        )

    start = (jnp.zeros(q.shape, jnp.float32), jnp.zeros(q.shape[:-1], jnp.float32))
    mixed, totals = jax.lax.fori_loop(0, num_turns, add_next, start)
    # The largest score adds 1 to the total; only a slot without pages has less.
    return (mixed / jnp.maximum(totals, 1)[..., None]).astype(values.dtype)


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
    columns = jnp.arange(page_size)
    queries = jnp.repeat(columns, q.shape[2] // page_size)
    queries = page_index[:, None] * page_size + queries[None, :]

    def attend_next(turn: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        pages = jax.lax.dynamic_index_in_dim(table, turn, axis=1, keepdims=False)
        scores = jnp.einsum("rkth,rkhb->rktb", q, keys[pages], preferred_element_type=jnp.float32)
        mask = queries[:, :, None] >= (turn * page_size + columns)[None, None, :]
        scores = platform.separate(scores + jnp.where(mask, 0.0, _MASKED)[:, None])
        merged = _merge(state, scores, values[pages])
        here = (turn <= page_index)[:, None, None, None]
        return tuple(jnp.where(here, new, old) for new, old in zip(merged, state, strict=True))

    narrow = jnp.zeros((*q.shape[:-1], 1), jnp.float32)
    start = (narrow + _MASKED, narrow, jnp.zeros(q.shape, jnp.float32))
    _, total, mixed = jax.lax.fori_loop(0, num_turns, attend_next, start)
    return (mixed / total).astype(values.dtype)


def _merge(
    state: tuple[jax.Array, ...], scores: jax.Array, values: jax.Array
) -> tuple[jax.Array, ...]:
    """One page more of a softmax in pieces.

    The state is the largest score so far, the sum of exp(score - largest), and the sum of that
    times value; the first two have a last axis of 1.
    """
    old_largest, total, mixed = state
    largest = jnp.maximum(old_largest, scores.max(axis=-1, keepdims=True))
    weights = platform.separate(jnp.exp(scores - largest))
    shrink = jnp.exp(old_largest - largest)
    page = jnp.einsum(
        "rktb,rkbh->rkth", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    return largest, total * shrink + weights.sum(axis=-1, keepdims=True), mixed * shrink + page
