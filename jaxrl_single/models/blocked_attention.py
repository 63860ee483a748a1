"""Causal attention within segments, in blocks of queries, with a gradient written by hand.

Nothing of size T x T is ever stored: the forward pass keeps the logarithm of each query's
normaliser, and the backward pass rebuilds the weights of one block at a time from it (Rabe and
Staats, arXiv:2112.05682; FlashAttention, arXiv:2205.14135). A block of queries sees only the keys
up to its own end, so the causal half of the work is skipped too.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from jaxrl_single.models import platform

_BLOCK = 128  # queries at once
_CHUNK = 4  # on CPU, (row, kv head) pairs at once, so that a block of scores stays in cache
_MASKED = -1e30  # finite: exp of it is 0, and no inf - inf can arise

Residuals = tuple[jax.Array, ...]


@jax.custom_vjp
def attend(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Attention of each query to the keys of its segment up to its own position.

    Args:
      q: [B, T, K, G, H], already scaled.
      k: [B, T, K, H].
      v: [B, T, K, H].
      segment_ids: [B, T] int; equal numbers attend to one another.

    Returns:
      [B, T, K, G, H]. Scores and softmax are float32, the rest has the dtype of the inputs.
    """
    return _attend_forward(q, k, v, segment_ids)[0]


def _attend_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array
) -> tuple[jax.Array, Residuals]:
    queries, keys, values = _fold(q), _fold(k[..., None, :]), _fold(v[..., None, :])
    segments = jnp.repeat(segment_ids[:, None], k.shape[2], axis=1)
    mixed, normaliser = _over_chunks(_chunk_forward, (queries, keys, values, segments))
    return _unfold(mixed, q.shape), (queries, keys, values, segments, mixed, normaliser)


def _attend_backward(
    residuals: Residuals, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    shape = gradient.shape
    kv_shape = (*shape[:3], 1, shape[4])
    dq, dk, dv = _over_chunks(_chunk_backward, (*residuals, _fold(gradient)))
    dk, dv = _unfold(dk, kv_shape)[..., 0, :], _unfold(dv, kv_shape)[..., 0, :]
    return _unfold(dq, shape), dk, dv, None


attend.defvjp(_attend_forward, _attend_backward)


def _chunk_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """q [.., T G, H], k and v [.., T, H], segments [.., T] -> mixed [.., T G, H], normaliser.

    The normaliser [.., T G, 1] is the logarithm of the sum of exp(scores).
    """
    mixed, normalisers = [], []
    for rows, start, end in _blocks(q.shape[-2], k.shape[-2]):
        scores = _scores(q[..., rows, :], k[..., :end, :], segments, start)
        largest = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True)
        out = _dot("...ts,...sh->...th", weights.astype(v.dtype), v[..., :end, :])
        mixed.append((out / total).astype(v.dtype))
        normalisers.append(largest + jnp.log(total))
    return jnp.concatenate(mixed, axis=-2), jnp.concatenate(normalisers, axis=-2)


def _chunk_backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    mixed: jax.Array,
    normaliser: jax.Array,
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients with respect to q, k and v."""
    length = k.shape[-2]
    dq, dk, dv = [], jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    # Sum over keys of weight x d(weight), equal to the dot of output and its gradient.
    shift = (mixed.astype(jnp.float32) * gradient.astype(jnp.float32)).sum(axis=-1, keepdims=True)
    for rows, start, end in _blocks(q.shape[-2], length):
        pad = (*[(0, 0)] * (k.ndim - 2), (0, length - end), (0, 0))
        scores = _scores(q[..., rows, :], k[..., :end, :], segments, start)
        weights = jnp.exp(scores - normaliser[..., rows, :])
        dweights = _dot("...th,...sh->...ts", gradient[..., rows, :], v[..., :end, :])
        dscores = (weights * (dweights - shift[..., rows, :])).astype(q.dtype)
        weights, dscores = platform.separate((weights.astype(q.dtype), dscores))
        dq.append(_dot("...ts,...sh->...th", dscores, k[..., :end, :]).astype(q.dtype))
        dk += jnp.pad(_dot("...ts,...th->...sh", dscores, q[..., rows, :]), pad)
        dv += jnp.pad(_dot("...ts,...th->...sh", weights, gradient[..., rows, :]), pad)
    return jnp.concatenate(dq, axis=-2), dk.astype(k.dtype), dv.astype(v.dtype)


def _scores(q: jax.Array, k: jax.Array, segments: jax.Array, start: int) -> jax.Array:
    """Masked scores [.., t G, S] of the queries of tokens start .. S against keys [.., S, H]."""
    end = k.shape[-2]
    groups = q.shape[-2] // (end - start)
    tokens = jnp.repeat(jnp.arange(start, end), groups)
    own = jnp.repeat(segments[..., start:end], groups, axis=-1)
    causal = tokens[:, None] >= jnp.arange(end)[None, :]
    mask = (own[..., :, None] == segments[..., None, :end]) & jnp.expand_dims(
        causal, range(segments.ndim - 1)
    )
    return jnp.where(mask, _dot("...th,...sh->...ts", q, k), _MASKED)


def _blocks(num_rows: int, length: int) -> list[tuple[slice, int, int]]:
    """Per block of tokens start .. end: its rows of the folded queries, start and end."""
    groups = num_rows // length
    starts = range(0, length, _BLOCK)
    ends = [min(start + _BLOCK, length) for start in starts]
    return [(slice(s * groups, e * groups), s, e) for s, e in zip(starts, ends, strict=True)]


_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _over_chunks(chunk_fn, arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Applies chunk_fn to arrays [B, K, ...]; on CPU to a few (row, kv head) pairs at a time."""
    if not platform.on_cpu():
        return chunk_fn(*arrays)
    rows, heads = arrays[0].shape[:2]
    chunk = math.gcd(rows * heads, _CHUNK)
    chunks = [array.reshape(-1, chunk, *array.shape[2:]) for array in arrays]
    outputs = jax.lax.map(lambda chunk_arrays: chunk_fn(*chunk_arrays), chunks)
    return tuple(array.reshape(rows, heads, *array.shape[2:]) for array in outputs)


def _fold(x: jax.Array) -> jax.Array:
    """[B, T, K, G, H] -> [B, K, T G, H]: a matrix per row and kv head, tokens before groups."""
    b, t, k, g, h = x.shape
    return x.transpose(0, 2, 1, 3, 4).reshape(b, k, t * g, h)


def _unfold(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    b, t, k, g, h = shape
    return x.reshape(b, k, t, g, h).transpose(0, 2, 1, 3, 4)
