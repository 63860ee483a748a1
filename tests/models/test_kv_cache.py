"""Writing, copying and resizing pages, as on CPU and as elsewhere, against loops over tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.models import kv_cache, platform, sizes

PAGES, PAGE_SIZE, HEADS, HEAD_SIZE = 5, 4, 2, 16


@pytest.fixture(params=[True, False], ids=["rows", "scatter"])
def formulation(request, monkeypatch):
    monkeypatch.setattr(platform, "on_cpu", lambda: request.param)


def _old_layer(rng):
    return (
        rng.normal(size=(PAGES, HEADS, HEAD_SIZE, PAGE_SIZE)).astype(np.float32),
        rng.normal(size=(PAGES, HEADS, PAGE_SIZE, HEAD_SIZE)).astype(np.float32),
    )


def _assert_written(actual, old, tokens):
    """tokens: (page, column, k [K, H], v [K, H]); all else is as it was."""
    keys, values = (part.copy() for part in old)
    for page, column, k, v in tokens:
        keys[page, :, :, column] = k
        values[page, :, column] = v
    np.testing.assert_array_equal(actual[0], keys)
    np.testing.assert_array_equal(actual[1], values)


@pytest.mark.parametrize(
    ("pages", "columns", "active"),
    [
        ([2, 0, 4], [0, 3, 1], [True, True, True]),
        ([1, 1, 99], [2, 2, 0], [False, True, False]),  # idle rows name a page in use, and none
        ([1, 1, 0], [2, 2, 1], [True, False, True]),
    ],
)
def test_one_token_a_row_lands_at_its_place(formulation, pages, columns, active):
    rng = np.random.default_rng(0)
    old = _old_layer(rng)
    k, v = rng.normal(size=(2, 3, HEADS, HEAD_SIZE)).astype(np.float32)
    write = jax.jit(lambda *args: kv_cache.write_tokens(*args))

    actual = write(old, k, v, np.array(pages), np.array(columns), np.array(active))

    rows = [r for r in range(3) if active[r]]
    _assert_written(actual, old, [(pages[r], columns[r], k[r], v[r]) for r in rows])


@pytest.mark.parametrize(
    ("pages", "spans"),
    [
        ([2, 0, 4], [(0, 4), (1, 3), (3, 4)]),
        ([1, 1, 99], [(0, 0), (2, 4), (4, 4)]),  # empty rows name a page in use, and none
        ([1, 1, 0], [(0, 2), (0, 0), (0, 4)]),
    ],
)
def test_the_real_columns_of_a_page_are_written(formulation, pages, spans):
    rng = np.random.default_rng(1)
    old = _old_layer(rng)
    k, v = rng.normal(size=(2, 3, PAGE_SIZE, HEADS, HEAD_SIZE)).astype(np.float32)
    real = np.array([[first <= c < last for c in range(PAGE_SIZE)] for first, last in spans])
    write = jax.jit(lambda *args: kv_cache.write_pages(*args))

    actual = write(old, k, v, np.array(pages), real)

    places = [(r, c) for r in range(3) for c in range(*spans[r])]
    _assert_written(actual, old, [(pages[r], c, k[r, c], v[r, c]) for r, c in places])


def test_copies_land_in_their_targets_and_targets_behind_the_pool_are_ignored(formulation):
    rng = np.random.default_rng(2)
    old = [_old_layer(rng) for _ in range(2)]
    copy = jax.jit(lambda *args: kv_cache.copy_pages(*args))

    actual = copy(old, np.array([3, 3, 0, 99]), np.array([1, 4, PAGES, PAGES + 7]))

    for layer, before in zip(actual, old, strict=True):
        for part, was in zip(layer, before, strict=True):
            np.testing.assert_array_equal(part, was[[0, 3, 2, 3, 3]])


@pytest.mark.parametrize("num_pages", [3, 5, 8])
def test_a_resized_pool_keeps_its_first_pages_and_is_zero_behind_them(num_pages):
    old = [_old_layer(np.random.default_rng(3))]

    ((keys, values),) = kv_cache.resize(jax.tree.map(jnp.asarray, old), num_pages)

    for part, was in ((keys, old[0][0]), (values, old[0][1])):
        assert part.shape == (num_pages, *was.shape[1:])
        kept = min(num_pages, PAGES)
        np.testing.assert_array_equal(part[:kept], was[:kept])
        assert not part[kept:].any()


def test_an_empty_cache_has_one_pair_per_layer():
    shape = sizes.get("tiny", vocab_size=8, dtype="bfloat16")

    cache = kv_cache.init(shape, num_pages=PAGES, page_size=PAGE_SIZE)

    assert [(k.shape, v.shape) for k, v in cache] == 2 * [((5, 2, 16, 4), (5, 2, 4, 16))]
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(cache)} == {"bfloat16"}
