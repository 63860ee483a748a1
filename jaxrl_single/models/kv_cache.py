"""The key/value cache: a pool of pages per layer, updated in place when donated.

A page holds `page_size` consecutive tokens of one sequence; which page holds which tokens is known
to the host alone. So the memory in use, and the cost of reading it, follow the tokens that exist.

Keys are stored transposed, [P, K, H, B]: the decode dot contracts H, and XLA:CPU would otherwise
transpose them at every token. Layers are separate arrays because a scan that carries the cache
copies it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import platform

LayerCache = tuple[jax.Array, jax.Array]
Cache = list[LayerCache]


def init(config: config_lib.ModelConfig, *, num_pages: int, page_size: int) -> Cache:
    """Zeros: per layer k [P, K, H, B] and v [P, K, B, H]."""
    keys = (num_pages, config.num_kv_heads, config.head_size, page_size)
    values = (num_pages, config.num_kv_heads, page_size, config.head_size)
    return [
        (jnp.zeros(keys, config.dtype), jnp.zeros(values, config.dtype))
        for _ in range(config.num_layers)
    ]


def resize(cache: Cache, num_pages: int) -> Cache:
    """The first `num_pages` pages; where there were fewer, zeros follow."""

    def resized(pages: jax.Array) -> jax.Array:
        missing = max(num_pages - pages.shape[0], 0)
        return jnp.pad(pages[:num_pages], ((0, missing), *[(0, 0)] * (pages.ndim - 1)))

    return jax.tree.map(resized, cache)


def copy_pages(cache: Cache, sources: jax.Array, targets: jax.Array) -> Cache:
    """Pages `sources` [n] overwrite pages `targets` [n].

    A target of P or more is ignored, with its source. The others are different from one another
    and from all sources.
    """
    num_pages = cache[0][0].shape[0]
    sources = jnp.clip(sources, 0, num_pages - 1)
    if not platform.on_cpu():
        return jax.tree.map(lambda pages: pages.at[targets].set(pages[sources], mode="drop"), cache)
    # Copied onto itself, a page keeps what it holds.
    sources = jnp.where(targets < num_pages, sources, 0)
    targets = jnp.where(targets < num_pages, targets, 0)

    def copy(i: jax.Array, cache: Cache) -> Cache:
        return jax.tree.map(
            lambda pages: jax.lax.dynamic_update_index_in_dim(
                pages, pages[sources[i]], targets[i], axis=0
            ),
            cache,
        )

    return jax.lax.fori_loop(0, sources.shape[0], copy, cache)


def write_tokens(
    cache: LayerCache,
    k: jax.Array,
    v: jax.Array,
    pages: jax.Array,
    columns: jax.Array,
    active: jax.Array,
) -> LayerCache:
    """Writes one token a row, k and v [S, K, H], into column `columns` [S] of page `pages` [S].

    Rows that are not `active` [S] change nothing, whatever page they name. The others name
    different pages.
    """
    keys, values = cache
    if not platform.on_cpu():
        pages = jnp.where(active, pages, keys.shape[0])  # behind the pool, where "drop" ignores it
        return (
            keys.at[pages, :, :, columns].set(k, mode="drop"),
            values.at[pages, :, columns].set(v, mode="drop"),
        )
    pages = jnp.where(active, pages, 0)

    def write(row: jax.Array, cache: LayerCache) -> LayerCache:
        keys, values = cache
        page, column = pages[row], columns[row]
        new_k, new_v = k[row][None, :, :, None], v[row][None, :, None, :]
        keys = _update(keys, new_k, (page, 0, 0, column), active[row])
        return keys, _update(values, new_v, (page, 0, column, 0), active[row])

    # One by one, which XLA:CPU does in place; a scatter is slower there, a `where` far slower.
    return jax.lax.fori_loop(0, k.shape[0], write, cache)


def write_pages(
    cache: LayerCache,
    k: jax.Array,
    v: jax.Array,
    pages: jax.Array,
    real: jax.Array,
) -> LayerCache:
    """Writes the columns of a page that are `real` [R, B] from k and v [R, B, K, H].

    Rows of nothing real change nothing, whatever page they name. The others name different pages.
    """
    k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
    masks = real[:, None, None, :], real[:, None, :, None]
    if not platform.on_cpu():
        pages = jnp.where(real.any(axis=1), pages, cache[0].shape[0])
        old = [part.at[pages].get(mode="clip") for part in cache]
        keys, values = (
            part.at[pages].set(jnp.where(mask, new, kept), mode="drop")
            for part, mask, new, kept in zip(cache, masks, (k, v), old, strict=True)
        )
        return keys, values

    def write(row: jax.Array, cache: LayerCache) -> LayerCache:
        corner = (pages[row], 0, 0, 0)
        keys, values = cache
        keys = _update(keys, k[row][None], corner, masks[0][row][None])
        return keys, _update(values, v[row][None], corner, masks[1][row][None])

    return jax.lax.fori_loop(0, k.shape[0], write, cache)


def _update(array: jax.Array, new: jax.Array, corner: tuple, mask: jax.Array) -> jax.Array:
    old = jax.lax.dynamic_slice(array, corner, new.shape)
    return jax.lax.dynamic_update_slice(array, jnp.where(mask, new, old), corner)
