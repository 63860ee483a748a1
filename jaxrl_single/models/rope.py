"""Rotary positions (RoFormer, arXiv:2104.09864), also stretched over longer contexts.

The first R entries of a head are pairs (i, i + R/2), and pair i turns by position * frequency i,
theta ** (-2 i / R); the others stay. Stretched by a factor s:

  linear   every frequency is divided by s (arXiv:2306.15595).
  dynamic  theta grows with the position beyond the original length, so a token there turns as the
           last token of a sequence that ends with it. transformers computes this when it generates
           token by token; the numbers of a token depend on nothing that comes after it.
  llama3   pairs that turn seldom within the original length are divided by s, those that turn often
           are not, and those between get a mixture in proportion to their turns (arXiv:2407.21783).
  yarn     the same, in proportion to the number of the pair, and queries and keys become a little
           longer (arXiv:2309.00071).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single.models import config as config_lib

Rotation = tuple[jax.Array, jax.Array]


def rotation(config: config_lib.ModelConfig, positions: jax.Array) -> Rotation:
    """Cosines and sines of the angles of tokens, float32, times the attention factor.

    Args:
      positions: [...] int, position of each token in its segment.

    Returns:
      Two arrays [..., R / 2].
    """
    if config.rope_scaling is not None and config.rope_scaling.kind == "dynamic":
        turns = _dynamic_frequencies(config, positions)
    else:
        turns = jnp.expand_dims(frequencies(config), range(positions.ndim))
    angles = positions[..., None].astype(jnp.float32) * turns
    factor = attention_factor(config)
    return factor * jnp.cos(angles), factor * jnp.sin(angles)


def rotate(x: jax.Array, by: Rotation) -> jax.Array:
    """Turns the pairs of x [..., heads, H] by the angles of its tokens."""
    return turn(x.astype(jnp.float32), *(part[..., None, :] for part in by), axis=-1).astype(
        x.dtype
    )


def turn(x: jax.Array, cos: jax.Array, sin: jax.Array, *, axis: int) -> jax.Array:
    """Turns pairs along an axis of x, of size H; that of cosines and sines has size R / 2."""
    half = cos.shape[axis]
    first, second, rest = jnp.split(x, [half, 2 * half], axis=axis)
    turned = [first * cos - second * sin, second * cos + first * sin]
    # Nothing is joined where all entries turn, so that no program has an array of size 0.
    return jnp.concatenate([*turned, rest] if rest.shape[axis] else turned, axis=axis)


def frequencies(config: config_lib.ModelConfig) -> np.ndarray:
    """Radians per position of each pair, [R / 2] float32; of "dynamic" those within its length."""
    half = config.rotary_size // 2
    plain = config.rope_theta ** (-np.arange(half) / half)
    scaling = config.rope_scaling
    if scaling is None or scaling.kind == "dynamic":
        kept = np.ones(half)
    elif scaling.kind == "linear":
        kept = np.zeros(half)
    elif scaling.kind == "llama3":
        turns = scaling.original_length * plain / (2 * math.pi)
        kept = (turns - scaling.slow_turns) / (scaling.fast_turns - scaling.slow_turns)
    else:
        kept = _kept_by_yarn(config, scaling)
    kept = np.clip(kept, 0, 1)
    stretched = plain if scaling is None else plain / scaling.factor
    return (kept * plain + (1 - kept) * stretched).astype(np.float32)


def attention_factor(config: config_lib.ModelConfig) -> float:
    """Of cosines and sines, and so of queries and keys."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1


def _kept_by_yarn(config: config_lib.ModelConfig, scaling: config_lib.RopeScaling) -> np.ndarray:
    """Share of its own frequency that each pair keeps: 1 up to a first pair, 0 from a last one."""
    size = config.rotary_size

    def pair(turns: float) -> float:
        """Which pair turns so often within the original length."""
        wavelength = scaling.original_length / (2 * math.pi * turns)
        return size * math.log(wavelength) / (2 * math.log(config.rope_theta))

    first, last = pair(scaling.fast_turns), pair(scaling.slow_turns)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    # The last pair is number size / 2 - 1; others bound it by size - 1, and weights rely on that.
    first, last = max(first, 0), min(last, size - 1)
    return 1 - (np.arange(size // 2) - first) / max(last - first, 1e-3)


def _dynamic_frequencies(config: config_lib.ModelConfig, positions: jax.Array) -> jax.Array:
    """[...] -> [..., R / 2]."""
    scaling, size = config.rope_scaling, config.rotary_size
    # Not position + 1 - original_length, which overflows where positions are garbage.
    beyond = jnp.maximum(positions, scaling.original_length - 1).astype(jnp.float32)
    excess = (beyond + 1) / scaling.original_length - 1
    growth = jnp.log1p(scaling.factor * excess) * (size / (size - 2))
    exponents = jnp.expand_dims(-jnp.arange(size // 2) / (size // 2), range(positions.ndim))
    return jnp.exp(exponents * (math.log(config.rope_theta) + growth[..., None]))
