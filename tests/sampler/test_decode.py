"""Drawing one token from a row of logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.sampler import decode


def _draw_at(row, uniforms, temperature=1.0):
    count = len(uniforms)
    rows = jnp.broadcast_to(jnp.asarray(row, jnp.float32), (count, len(row)))
    return [
        np.asarray(x)
        for x in jax.jit(decode.draw)(rows, jnp.full(count, temperature), jnp.asarray(uniforms))
    ]


def _softmax(row, temperature):
    scaled = np.asarray(row, np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max())
    return probabilities / probabilities.sum()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_every_token_gets_its_share_of_the_unit_interval(temperature):
    row = np.random.default_rng(0).normal(size=37)
    count = 20_000
    uniforms = (np.arange(count, dtype=np.float32) + 0.5) / count
    tokens, logprobs, entropies = _draw_at(row, uniforms, temperature)
    expected = _softmax(row, temperature)
    # The ends of an interval may fall on either side: 2 points, and a little float32 rounding.
    np.testing.assert_allclose(np.bincount(tokens, minlength=37) / count, expected, atol=3 / count)
    np.testing.assert_allclose(logprobs, np.log(expected)[tokens], atol=2e-6)
    np.testing.assert_allclose(entropies, -(expected * np.log(expected)).sum(), atol=2e-6)


@pytest.mark.parametrize(
    "row",
    [
        [-np.inf, 0.0, -np.inf, 1.0, -np.inf],
        [-500.0, 0.0, -500.0, 1.0, -500.0],
    ],
)
def test_an_impossible_token_is_never_drawn(row):
    uniforms = np.float32(
        [0.0, 1e-30, 0.2689, 0.26895, 0.5, 1 - 2**-23, np.nextafter(1, 0, dtype=np.float32)]
    )
    tokens, logprobs, entropies = _draw_at(row, uniforms)
    assert set(tokens) == {1, 3}
    assert np.isfinite(logprobs).all()
    np.testing.assert_allclose(entropies, 0.58220, atol=1e-5)  # of (e / (1 + e), 1 / (1 + e))


def test_rounding_of_partial_sums_draws_no_impossible_token():
    """Wide rows of tiny and zero probabilities, thresholds at and around every partial sum."""
    rng = np.random.default_rng(1)
    for _ in range(5):
        row = rng.normal(size=300) * 8
        row[rng.random(300) < 0.5] = -np.inf
        sums = np.cumsum(_softmax(row, 1.0)).astype(np.float32)
        near = np.concatenate([sums, np.nextafter(sums, 0), np.nextafter(sums, 2)])
        uniforms = np.clip(near, 0, np.nextafter(np.float32(1), np.float32(0)))
        tokens, logprobs, _ = _draw_at(row, uniforms.astype(np.float32))
        assert np.isfinite(row[tokens]).all()
        assert np.isfinite(logprobs).all()


def test_a_certain_token_has_log_prob_and_entropy_zero():
    tokens, logprobs, entropies = _draw_at([0.0, 2000.0, 0.0], np.float32([0.0, 0.9]))
    assert list(tokens) == [1, 1]
    assert list(logprobs) == [0.0, 0.0]
    assert list(entropies) == [0.0, 0.0]
