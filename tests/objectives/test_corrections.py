"""Corrections: worked weights, caps, extremes, garbage, no gradient."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import corrections

LOG_RATIO = np.log([0.50, 0.12, 0.97, 0.29, 0.0005]) - np.log([0.60, 0.02, 0.90, 0.30, 0.005])
RATIO = np.array([0.833333333, 6.0, 1.077777778, 0.966666667, 0.1])
OWNERS = (np.ones(5, bool), np.zeros(5, np.int32), 1)
TOKEN = {
    "token_tis": functools.partial(corrections.token_tis, cap=2.0),
    "engine_ratio": corrections.engine_ratio,
    "engine_tis": functools.partial(corrections.engine_tis, cap=2.0),
}
SEQUENCE = {
    "sequence_ratio": corrections.sequence_ratio,
    "sequence_tis": functools.partial(corrections.sequence_tis, cap=2.0),
}
ALL = TOKEN | SEQUENCE

# Two packed rows: trajectory 1 goes on in the second, trajectory 2 counts no token.
INDEX = np.array([[0, 0, 1, 1], [1, 2, 2, -1]])
MASK = np.array([[1, 0, 1, 1], [1, 0, 0, 0]], bool)
PACKED = np.float32([[0.5, 0.7, 0.1, 0.2], [0.3, 9.0, 9.0, 9.0]])


def call(name, log_ratio, mask=MASK, index=INDEX, num_trajectories=3):
    """Any correction with the arrays that it reads."""
    return every_one(log_ratio, mask, index, num_trajectories)[name]


@functools.partial(jax.jit, static_argnums=3)
def every_one(log_ratio, mask, index, num_trajectories):
    """All in one program, which is faster to compile than one each."""
    token = {name: f(log_ratio, mask) for name, f in TOKEN.items()}
    owners = (mask, index, num_trajectories)
    return token | {name: f(log_ratio, *owners) for name, f in SEQUENCE.items()}


@functools.cache
def gradients():
    def sums(log_ratio):
        return jax.tree.map(jnp.sum, every_one(log_ratio, MASK, INDEX, 3))

    return jax.jit(jax.jacrev(sums))(PACKED)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_tis", np.minimum(RATIO, 2.0)),
        ("engine_ratio", RATIO),
        ("engine_tis", np.minimum(RATIO, 2.0)),
        ("sequence_ratio", np.full(5, 0.520925925926)),
        ("sequence_tis", np.full(5, 0.520925925926)),
    ],
)
def test_golden_on_the_fixture_of_all_gates(name, expected):
    np.testing.assert_allclose(call(name, np.float32(LOG_RATIO), *OWNERS), expected, rtol=2e-6)
    with jax.enable_x64(True):
        got = call(name, LOG_RATIO, *OWNERS)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_near_on_policy_sequence():
    log_ratio = np.float32(np.log([1.01, 0.99, 1.02, 0.985, 1.0]))
    expected = np.full(5, 1.00459953)
    np.testing.assert_allclose(call("sequence_ratio", log_ratio, *OWNERS), expected, rtol=1e-6)


def test_sequences_across_rows():
    expected = np.exp([[0.5, 0, 0.6, 0.6], [0.6, 0, 0, 0]]) * MASK
    np.testing.assert_allclose(call("sequence_ratio", PACKED), expected, rtol=1e-6)
    capped = np.minimum(expected, 1.7)
    tis = jax.jit(functools.partial(corrections.sequence_tis, cap=1.7), static_argnums=3)
    np.testing.assert_allclose(tis(PACKED, MASK, INDEX, 3), capped, rtol=1e-6)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize("name", ALL)
def test_garbage_under_the_mask_changes_nothing(name, garbage):
    got = call(name, np.where(MASK, PACKED, np.float32(garbage)))
    np.testing.assert_array_equal(got, call(name, PACKED))
    np.testing.assert_array_equal(np.asarray(got)[~MASK], 0.0)


@pytest.mark.parametrize("log_ratio", [-1e4, 1e4])
@pytest.mark.parametrize("name", ALL)
def test_extremes_are_finite(name, log_ratio):
    got = np.asarray(call(name, np.full((2, 4), log_ratio, np.float32)))
    assert np.isfinite(got).all()
    if "tis" in name:
        np.testing.assert_allclose(got[MASK], 2.0 if log_ratio > 0 else 0.0, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_any_shape_gives_the_same(name):
    got = call(name, PACKED)
    flat = call(name, PACKED.reshape(-1), MASK.reshape(-1), INDEX.reshape(-1))
    np.testing.assert_allclose(flat, got.reshape(-1), rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_no_gradient_flows_and_nothing_to_count_gives_zeros(name):
    np.testing.assert_array_equal(gradients()[name], 0.0)
    np.testing.assert_array_equal(call(name, PACKED * np.nan, np.zeros_like(MASK)), 0.0)


@pytest.mark.parametrize("name", ["engine_ratio", "engine_tis"])
def test_what_compares_engines_reads_the_engines(name):
    assert next(iter(inspect.signature(ALL[name]).parameters)) == "engine_log_ratio"
