"""Blocked attention against the plain form, and what it keeps for the backward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.models import blocked_attention, platform

ROWS, KV_HEADS, GROUPS, HEAD_SIZE = 2, 2, 2, 4


def _inputs(length: int, *, seed: int = 0):
    """q, k, v and segments: two segments in row 0; one and padding (0) behind it in row 1."""
    rng = np.random.default_rng(seed)
    shapes = ((KV_HEADS, GROUPS, HEAD_SIZE), (KV_HEADS, HEAD_SIZE), (KV_HEADS, HEAD_SIZE))
    q, k, v = (rng.normal(size=(ROWS, length, *rest)).astype(np.float32) for rest in shapes)
    place, cut = np.arange(length), (2 * length) // 3
    segments = np.stack([1 + (place >= cut), np.where(place < cut, 1, 0)]).astype(np.int32)
    return q, k, v, segments


def _plain(q, k, v, segments):
    """[T, T] scores of each row and head, by the textbook."""
    length = q.shape[1]
    scores = jnp.einsum("btkgh,bskh->bkgts", q, k)
    causal = jnp.tril(jnp.ones((length, length), bool))[None]
    mask = causal & (segments[:, :, None] == segments[:, None, :])
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bkgts,bskh->btkgh", weights, v)


def _value_and_gradients(attend, q, k, v, segments):
    cotangent = np.random.default_rng(9).normal(size=q.shape).astype(np.float32)

    @jax.jit
    def run(q, k, v):
        out, pullback = jax.vjp(lambda *qkv: attend(*qkv, segments), q, k, v)
        return out, *pullback(cotangent)

    return run(q, k, v)


@pytest.mark.parametrize("length", [5, 160])  # one short block; a full block and a part of one
def test_value_and_gradients_equal_the_plain_form(length):
    inputs = _inputs(length)

    actual = _value_and_gradients(blocked_attention.attend, *inputs)
    expected = _value_and_gradients(_plain, *inputs)

    # Scores of size 5 and sums over 160 keys round at 1e-6.
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


def test_the_form_for_accelerators_gives_the_same_numbers(monkeypatch):
    inputs = _inputs(20)
    on_cpu = _value_and_gradients(blocked_attention.attend, *inputs)
    monkeypatch.setattr(platform, "on_cpu", lambda: False)

    elsewhere = _value_and_gradients(blocked_attention.attend, *inputs)

    for got, want in zip(elsewhere, on_cpu, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


def test_nothing_quadratic_in_the_length_is_kept():
    q, k, v, segments = _inputs(512)

    _, pullback = jax.eval_shape(
        functools.partial(jax.vjp, blocked_attention.attend),
        *(jnp.asarray(array) for array in (q, k, v, segments)),
    )
    largest = max(leaf.size for leaf in jax.tree.leaves(pullback))

    assert largest <= q.size


def test_other_segments_do_not_matter_to_the_bit():
    q, k, v, segments = _inputs(20)
    outside = segments != 1
    changed = [
        np.where(outside.reshape(*outside.shape, *[1] * (x.ndim - 2)), 1e4, x) for x in (q, k, v)
    ]
    cotangent = jnp.where(jnp.asarray(segments == 1)[:, :, None, None, None], 1.0, 0.0)

    @jax.jit
    def run(q, k, v):
        out, pullback = jax.vjp(lambda *qkv: blocked_attention.attend(*qkv, segments), q, k, v)
        return out, *pullback(jnp.broadcast_to(cotangent, q.shape))

    for got, want in zip(run(*map(np.float32, changed)), run(q, k, v), strict=True):
        np.testing.assert_array_equal(np.asarray(got)[~outside], np.asarray(want)[~outside])
