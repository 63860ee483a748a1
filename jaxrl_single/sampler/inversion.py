"""One token from each row of probabilities, by inversion of the distribution function."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

_NARROW = 256  # vocabularies up to this are searched in one level, which has fewer operations


def invert(probabilities: jax.Array, uniforms: jax.Array) -> jax.Array:
    """The token whose part of the distribution function holds the uniform, i32 [S].

    Wide rows are cut into about sqrt(V) blocks: first the block is found, then the token in it,
    so that no partial sums of the whole vocabulary are needed.

    Args:
      probabilities: [S, V] >= 0, each row with a positive entry; their sum need not be 1.
      uniforms: [S] in [0, 1).
    """
    thresholds = uniforms * probabilities.sum(axis=-1)
    vocab_size = probabilities.shape[-1]
    if vocab_size <= _NARROW:
        return _first_above(probabilities, thresholds)
    width = math.isqrt(vocab_size - 1) + 1
    padded = jnp.pad(probabilities, ((0, 0), (0, -vocab_size % width)))
    blocks = padded.reshape(len(padded), -1, width)
    masses = blocks.sum(axis=-1)
    chosen = _first_above(masses, thresholds)
    before = jnp.sum(jnp.where(jnp.arange(masses.shape[1])[None] < chosen[:, None], masses, 0), -1)
    block = jnp.take_along_axis(blocks, chosen[:, None, None], axis=1)[:, 0]
    return chosen * width + _first_above(block, thresholds - before)


def invert_each(probabilities: jax.Array, uniforms: jax.Array) -> jax.Array:
    """`invert` of M uniforms per row: [S, V] and [S, M] give i32 [S, M]."""
    if probabilities.shape[-1] > _NARROW:
        return jax.vmap(invert, in_axes=(None, 1), out_axes=1)(probabilities, uniforms)
    thresholds = uniforms * probabilities.sum(axis=-1, keepdims=True)
    return _each_first_above(probabilities, thresholds)


def _first_above(weights: jax.Array, thresholds: jax.Array) -> jax.Array:
    """Index of the first positive weight whose partial sum exceeds the threshold, i32 [S].

    If rounding has put the threshold above all sums, the first of the largest sums.
    """
    return _each_first_above(weights, thresholds[:, None])[:, 0]


def _each_first_above(weights: jax.Array, thresholds: jax.Array) -> jax.Array:
    """The same for thresholds [S, M], i32 [S, M]."""
    size = weights.shape[-1]
    # A dot with a triangle: XLA:CPU computes cumsum as a window of V terms at every place.
    triangle = jnp.triu(jnp.ones((size, size), weights.dtype))
    sums = jnp.matmul(weights, triangle, precision=jax.lax.Precision.HIGHEST)
    sums = jnp.where(weights > 0, sums, -jnp.inf)
    # [S, V, M]: the axis that is reduced is not the last one, so the loop over draws is a vector.
    places = jnp.arange(size, dtype=jnp.int32)[None, :, None]
    first = jnp.min(jnp.where(sums[:, :, None] > thresholds[:, None], places, size), axis=1)
    return jnp.minimum(first, jnp.argmax(sums, axis=-1, keepdims=True).astype(jnp.int32))
