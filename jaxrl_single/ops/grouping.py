"""Comparison within groups of any number and size: labels from keys, centring, normalising.

All arrays are [n]. Entries that do not count may hold anything; they join no group and get 0. Time
grows as n log n and memory as n, whatever the sizes of the groups.
"""

import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked


def label(keys: tuple[jax.Array, ...], mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Numbers the different combinations of keys.

    Args:
      keys: i32 [n] each; entries that agree in all of them share a label.
      mask: bool [n], which entries count.

    Returns:
      labels: i32 [n] in 0..n-1; 0 where not counted.
      first: bool [n], the first counted entry of each label.
    """
    order = jnp.lexsort((*keys, ~mask))  # counted ones in front; ties keep their order
    start = jnp.zeros(mask.shape, bool).at[:1].set(True)
    for key in keys:
        key = key[order]
        start |= jnp.concatenate([start[:1], key[1:] != key[:-1]])
    sorted_labels = jnp.cumsum(start, dtype=jnp.int32) - 1
    labels = jnp.zeros(mask.shape, jnp.int32).at[order].set(sorted_labels)
    first = jnp.zeros(mask.shape, bool).at[order].set(start)
    return jnp.where(mask, labels, 0), first & mask


def centred(x: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """x - mean of its group; exactly 0 where the whole group is equal, and in a group of one."""
    x, size = masked.clean(x, mask), labels.size
    count = jax.ops.segment_sum(mask.astype(x.dtype), labels, size)
    mean = jax.ops.segment_sum(x, labels, size) / jnp.maximum(count, 1.0)
    lowest = jax.ops.segment_min(jnp.where(mask, x, jnp.inf), labels, size)
    highest = jax.ops.segment_max(jnp.where(mask, x, -jnp.inf), labels, size)
    varies = mask & (lowest != highest)[labels]
    return masked.clean(x - mean[labels], varies)


def against_others(x: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """x - mean of the others of its group; exactly 0 where the whole group is equal or one."""
    deviation = centred(x, labels, mask)
    count = jax.ops.segment_sum(mask.astype(deviation.dtype), labels, labels.size)[labels]
    return deviation * count / jnp.maximum(count - 1.0, 1.0)


def normalised(x: jax.Array, labels: jax.Array, mask: jax.Array, *, eps: float) -> jax.Array:
    """(x - mean of its group) / (population std of its group + eps); 0 where the group is equal."""
    deviation, size = centred(x, labels, mask), labels.size
    count = jax.ops.segment_sum(mask.astype(deviation.dtype), labels, size)
    square = jax.ops.segment_sum(jnp.square(deviation), labels, size)
    std = jnp.sqrt(square / jnp.maximum(count, 1.0))[labels]
    return deviation / jnp.where(std > 0, std + eps, 1.0)
