"""The key/value cache: one pair of arrays per layer, updated in place when donated.

Keys are stored transposed, [S, K, H, C]: the decode dot contracts H, and XLA:CPU would otherwise
transpose the whole cache at every token. Layers are separate arrays because a scan that carries
the cache copies it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import platform

LayerCache = tuple[jax.Array, jax.Array]
Cache = list[LayerCache]


def init(config: config_lib.ModelConfig, *, num_slots: int, cache_length: int) -> Cache:
    """Zeros: per layer k [S, K, H, C] and v [S, K, C, H]."""
    keys = (num_slots, config.num_kv_heads, config.head_size, cache_length)
    values = (num_slots, config.num_kv_heads, cache_length, config.head_size)
    return [
        (jnp.zeros(keys, config.dtype), jnp.zeros(values, config.dtype))
        for _ in range(config.num_layers)
    ]


def write(
    cache: LayerCache,
    slots: jax.Array,
    k: jax.Array,
    v: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
) -> LayerCache:
    """Writes k, v [R, P, K, H] of the first `lengths` [R] tokens at `starts` [R] of `slots` [R].

    Rows of length 0 change nothing, whatever slot they name. Two rows of positive length must
    name different slots.
    """
    if platform.on_cpu():
        return _write_rows(cache, slots, k, v, starts, lengths)
    return _scatter(cache, slots, k, v, starts, lengths)


def _scatter(
    cache: LayerCache,
    slots: jax.Array,
    k: jax.Array,
    v: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
) -> LayerCache:
    keys, values = cache
    steps = jnp.arange(k.shape[1])[None, :]
    at = jnp.where(steps < lengths[:, None], starts[:, None] + steps, keys.shape[-1])
    slots = slots[:, None]
    # The tokens beyond `lengths` point behind the cache, where "drop" ignores them.
    return keys.at[slots, :, :, at].set(k, mode="drop"), values.at[slots, :, at].set(v, mode="drop")


def _write_rows(
    cache: LayerCache,
    slots: jax.Array,
    k: jax.Array,
    v: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
) -> LayerCache:
    """Row by row, which XLA:CPU does in place; a scatter there is slower, a `where` far slower."""
    width = k.shape[1]
    # A window that would reach behind the cache is moved back; `shift` says by how much.
    corners = jnp.clip(starts, 0, cache[0].shape[-1] - width)
    shift = starts - corners
    steps = jnp.arange(width)[None, :] - shift[:, None]
    fresh = (steps >= 0) & (steps < lengths[:, None])
    index = jnp.clip(steps, 0, width - 1)[:, :, None, None]
    k = jnp.take_along_axis(k, index, axis=1).transpose(0, 2, 3, 1)
    v = jnp.take_along_axis(v, index, axis=1).transpose(0, 2, 1, 3)

    def write_row(row: jax.Array, carry: LayerCache) -> LayerCache:
        keys, values = carry
        slot, corner, mask = slots[row], corners[row], fresh[row]
        keys = _update(keys, k[row], (slot, 0, 0, corner), mask[None, None, :])
        return keys, _update(values, v[row], (slot, 0, corner, 0), mask[None, :, None])

    return jax.lax.fori_loop(0, k.shape[0], write_row, cache)


def _update(array: jax.Array, new: jax.Array, corner: tuple, mask: jax.Array) -> jax.Array:
    old = jax.lax.dynamic_slice(array, corner, (1, *new.shape))
    return jax.lax.dynamic_update_slice(array, jnp.where(mask[None], new[None], old), corner)
