"""Restricted distributions against sorting in float64, and the order of the restrictions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single.ops import logprobs as logprob_ops
from jaxrl_single.sampler import restrict

V = 200
_restrict = jax.jit(
    lambda table, limits: restrict.restrict(table, restrict.offsets(limits, V), limits)
)


def _run(table, requests) -> np.ndarray:
    """Of a few rows, in the one shape that all tests compile."""
    rows = np.zeros((len(REQUESTS), V), np.float32)
    rows[: len(table)] = table
    limits = restrict.Limits.none(len(REQUESTS))
    for slot, request in enumerate(requests):
        limits.put(slot, request)
    return np.asarray(_restrict(jnp.asarray(rows), limits))[: len(table)]


def _limits(*requests) -> restrict.Limits:
    limits = restrict.Limits.none(len(requests))
    for slot, request in enumerate(requests):
        limits.put(slot, request)
    return limits


def _table(count: int, seed: int = 0) -> jax.Array:
    logits = np.random.default_rng(seed).normal(size=(count, V)) * 3
    return logprob_ops.log_softmax(jnp.asarray(logits, jnp.float32), 1.0)


def _expected(logprobs: np.ndarray, request) -> np.ndarray:
    """The kept set by sorting, in float64; -inf elsewhere."""
    scores = np.asarray(logprobs, np.float64)
    for token, value in request.logit_bias:
        scores[token] += value / (request.temperature or 1)  # the row has been divided already
    if request.allowed_token_ids:
        scores[[t for t in range(V) if t not in request.allowed_token_ids]] = -np.inf
    if request.temperature == 0:
        scores[np.arange(V) != scores.argmax()] = -np.inf
    if request.top_k:
        scores[scores < np.sort(scores)[::-1][: request.top_k].min()] = -np.inf
    if request.top_p < 1:
        masses = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        order = np.argsort(-scores, kind="stable")
        count = np.searchsorted(np.cumsum(masses[order]), request.top_p) + 1
        scores[scores < scores[order[:count]].min()] = -np.inf
    scores[scores < scores.max() + (np.log(request.min_p) if request.min_p else -np.inf)] = -np.inf
    return scores - np.log(np.exp(scores).sum())


REQUESTS = (
    {},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": V},
    {"top_k": 10**12},
    {"top_p": 0.8},
    {"top_p": 0.999},
    {"top_p": 1e-40},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 30, "top_p": 0.7},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.05},
    {"logit_bias": ((3, 50.0), (5, -100.0), (V - 1, 2.5))},
    {"logit_bias": ((3, 5.0), (5, -2.0)), "temperature": 0.5, "min_p": 0.2},
    {"logit_bias": ((3, 5.0),), "temperature": 4.0, "top_k": 3},
    {"allowed_token_ids": (7, 3, 150, 3)},
    {"allowed_token_ids": (7, 3, 150), "logit_bias": ((3, 1.5), (9, 1000.0)), "top_p": 0.9},
    {"logit_bias": ((0, 3.0),), "top_k": 5, "min_p": 0.01},
    {"temperature": 0.0},
    {"temperature": 0.0, "logit_bias": ((17, 30.0),), "top_k": 4, "top_p": 0.5},
)


@functools.cache
def _found() -> np.ndarray:
    return _run(_table(len(REQUESTS)), [lab.request(**request) for request in REQUESTS])


@pytest.mark.parametrize("slot", range(len(REQUESTS)), ids=map(str, REQUESTS))
def test_the_kept_tokens_and_their_log_probs(slot):
    expected = _expected(_table(len(REQUESTS))[slot], lab.request(**REQUESTS[slot]))
    np.testing.assert_array_equal(np.isfinite(_found()[slot]), np.isfinite(expected))
    np.testing.assert_allclose(_found()[slot], expected, atol=4e-6)


def test_what_is_needed():
    requests = [lab.request(**request) for request in REQUESTS]
    expected = [bool(request) for request in REQUESTS]
    np.testing.assert_array_equal(np.asarray(restrict.needed(_limits(*requests))), expected)


def test_a_slot_forgets_the_request_before():
    limits = _limits(lab.request(**REQUESTS[16]), lab.request(**REQUESTS[-1]))
    limits.put(0, lab.request())
    limits.put(1, lab.request(logit_bias=((2, 1.0),)))
    for fresh in (0, 1):
        clean = _limits(*(lab.request(**({"logit_bias": ((2, 1.0),)} if fresh else {})),))
        for field in dataclasses.fields(limits):
            if field.name != "bias_values":  # those of unused places are not read
                one, other = (getattr(x, field.name) for x in (limits, clean))
                np.testing.assert_array_equal(one[fresh], other[0], field.name)


def test_equally_likely_tokens_stay_together():
    row = jnp.log(jnp.asarray([0.1, 0.3, 0.1, 0.3, 0.1, 0.1] + [0.0] * (V - 6)))
    requests = (
        {"top_k": 1},
        {"top_k": 2},
        {"top_k": 3},
        {"top_p": 0.5},
        {"top_p": 0.65},
        {"min_p": 0.3},
    )
    table = jnp.broadcast_to(row, (len(requests), V))
    found = _run(table, [lab.request(**request) for request in requests])
    kept = [np.flatnonzero(np.isfinite(row)).tolist() for row in found]
    assert kept == [[1, 3], [1, 3], [0, 1, 2, 3, 4, 5], [1, 3], [0, 1, 2, 3, 4, 5], list(range(6))]
    (greedy,) = _run(table[:1], [lab.request(temperature=0.0)])
    assert np.flatnonzero(np.isfinite(greedy)).tolist() == [1]
    assert greedy[1] == 0.0


def test_a_slot_has_the_same_bits_whatever_the_others_ask_for():
    table = _table(len(REQUESTS))
    for slot, request in enumerate(REQUESTS):
        alone = restrict.Limits.none(len(REQUESTS))
        alone.put(slot, lab.request(**request))
        np.testing.assert_array_equal(np.asarray(_restrict(table, alone))[slot], _found()[slot])


def test_a_slot_without_restrictions_keeps_its_bits():
    table = _table(len(REQUESTS))
    found = _run(table, [lab.request(top_p=0.9)])
    np.testing.assert_array_equal(found[1:], table[1:])
    assert (found[0] != np.asarray(table)[0]).all()


def test_many_random_rows():
    """Masses near the targets may fall on either side in float32: the sets may differ there."""
    rng = np.random.default_rng(3)
    near = 0
    for seed in range(10):
        drawn = [
            {
                "top_k": int(rng.integers(0, 60)),
                "top_p": float(rng.uniform(0.05, 1)),
                "min_p": float(rng.choice([0, rng.uniform(0, 0.2)])),
            }
            for _ in REQUESTS
        ]
        table = _table(len(REQUESTS), seed + 1)
        requests = [lab.request(**fields) for fields in drawn]
        found = _run(table, requests)
        for slot, request in enumerate(requests):
            expected = _expected(table[slot], request)
            if (np.isfinite(found[slot]) != np.isfinite(expected)).any():
                near += 1
                continue
            np.testing.assert_allclose(found[slot], expected, atol=4e-6)
    assert near <= 1


def test_extreme_rows():
    """Impossible tokens, very unlikely ones, and one certain token."""
    rows = np.full((3, V), -np.inf, np.float32)
    rows[0, 5] = 0.0
    rows[1, :3] = [-1e-30, -80.0, -3e38]
    rows[2, :4] = np.log([0.5, 0.25, 0.25, 1e-38])
    for request in (
        {"top_k": 2},
        {"top_p": 0.9},
        {"min_p": 1e-6},
        {"allowed_token_ids": (0, 2, 5)},
    ):
        found = _run(rows, [lab.request(**request)] * 3)
        assert not np.isnan(found).any()
        np.testing.assert_allclose(np.exp(found).sum(axis=-1), 1, atol=1e-6)
        assert found[0, 5] == 0.0
        assert (np.isfinite(found) <= np.isfinite(rows)).all()
