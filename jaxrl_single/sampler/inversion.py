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


def _first_above(weights: jax.Array, thresholds: jax.Array) -> jax.Array:
    """Index of the first positive weight whose partial sum exceeds the threshold, i32 [S].

    If rounding has put the threshold above all sums, the first of the largest sums.
    """
    size = weights.shape[-1]
    # A dot with a triangle: XLA:CPU computes cumsum as a window of V terms at every place.
    triangle = jnp.triu(jnp.ones((size, size), weights.dtype))
    sums = jnp.matmul(weights, triangle, precision=jax.lax.Precision.HIGHEST)
    sums = jnp.where(weights > 0, sums, -jnp.inf)
    above = (sums > thresholds[:, None]) | (sums == sums.max(axis=-1, keepdims=True))
    return jnp.min(jnp.where(above, jnp.arange(size, dtype=jnp.int32)[None], size), axis=-1)
