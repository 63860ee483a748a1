"""One policy of each kind and the jitted programs that the tests share: few compilations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.models import api, sizes

VOCAB_SIZE = 40
ROWS, LENGTH = 2, 24
SIZES = ("tiny", "tiny_moe")
OTHER_SIZES = ("tiny_qwen2", "tiny_glm")  # where the path through the decoder is another
# Those that go together in a test: what tiny_qwen2 has, tiny_glm has too.
FORMS = [*SIZES, "tiny_glm", pytest.param("tiny_qwen2", marks=pytest.mark.long)]


@functools.cache
def policy_of(size: str, **changes) -> api.Policy:
    shape = sizes.get(size, vocab_size=VOCAB_SIZE)
    return api.build_policy(dataclasses.replace(shape, **changes))


@functools.cache
def params_of(size: str) -> api.Params:
    """Random; norms' scales are not 1, biases not 0, so that one that is forgotten shows."""
    params = policy_of(size).init(jax.random.key(0))
    rng = np.random.default_rng(1)

    def disturb(path, leaf):
        if path[-1].key == "scale":
            return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), leaf.dtype)
        if "bias" in path[-1].key:
            return jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype)
        return leaf

    return jax.tree_util.tree_map_with_path(disturb, params)


@functools.cache
def hidden_program(policy: api.Policy):
    """(params, tokens, positions, segment_ids) -> [B, T, D]."""
    return jax.jit(policy.hidden)


@functools.cache
def gradient_program(policy: api.Policy):
    """(params, rows, cotangent [B, T, D]) -> gradient of sum(hidden * cotangent)."""

    def objective(params, rows, cotangent):
        return jnp.sum(policy.hidden(params, *rows) * cotangent)

    return jax.jit(jax.grad(objective))


def packed_rows(lengths_of_rows, *, seed=0):
    """Rows (tokens, positions, segment_ids), each [ROWS, LENGTH] int32, 0 behind the segments."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((3, ROWS, LENGTH), np.int32)
    for b, lengths in enumerate(lengths_of_rows):
        start = 0
        for segment, length in enumerate(lengths, start=1):
            span = slice(start, start + length)
            rows[0, b, span] = rng.integers(0, VOCAB_SIZE, length)
            rows[1, b, span] = np.arange(length)
            rows[2, b, span] = segment
            start += length
    return tuple(rows)


def assert_trees_equal(actual, expected) -> None:
    """Bitwise."""
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
