"""Both ways of writing the cache, against a loop over tokens."""

import jax
import numpy as np
import pytest

from jaxrl_single.models import config, kv_cache, platform

SLOTS, CACHE_LENGTH, WIDTH = 3, 10, 4
HEADS, HEAD_SIZE = 2, 16


@pytest.fixture(params=[True, False], ids=["rows", "scatter"])
def write(request, monkeypatch):
    monkeypatch.setattr(platform, "on_cpu", lambda: request.param)
    return jax.jit(kv_cache.write)


def _old_cache(rng):
    return (
        rng.normal(size=(SLOTS, HEADS, HEAD_SIZE, CACHE_LENGTH)).astype(np.float32),
        rng.normal(size=(SLOTS, HEADS, CACHE_LENGTH, HEAD_SIZE)).astype(np.float32),
    )


def _expected(cache, slots, k, v, starts, lengths):
    keys, values = (part.copy() for part in cache)
    for row, slot in enumerate(slots):
        for i in range(lengths[row]):
            keys[slot, :, :, starts[row] + i] = k[row, i]
            values[slot, :, starts[row] + i] = v[row, i]
    return keys, values


@pytest.mark.parametrize(
    ("slots", "starts", "lengths"),
    [
        ([2, 0], [0, 3], [4, 2]),
        ([1, 2], [8, 6], [2, 4]),  # the window would reach behind the end of the cache
        ([1, 1], [5, 5], [3, 0]),  # a row without tokens names a slot in use
        ([1, 1], [5, 5], [0, 3]),
        ([0, 2], [9, 0], [0, 0]),
    ],
)
def test_tokens_land_at_their_places_and_nothing_else_changes(write, slots, starts, lengths):
    rng = np.random.default_rng(0)
    cache = _old_cache(rng)
    k, v = rng.normal(size=(2, len(slots), WIDTH, HEADS, HEAD_SIZE)).astype(np.float32)
    rows = (np.array(slots), k, v, np.array(starts), np.array(lengths))

    actual = write(cache, *rows)

    for got, want in zip(actual, _expected(cache, *rows), strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_empty_cache_has_one_pair_per_layer():
    shape = config.get("tiny", vocab_size=8, dtype="bfloat16")

    cache = kv_cache.init(shape, num_slots=SLOTS, cache_length=CACHE_LENGTH)

    assert [(k.shape, v.shape) for k, v in cache] == 2 * [((3, 2, 16, 10), (3, 2, 10, 16))]
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(cache)} == {"bfloat16"}
