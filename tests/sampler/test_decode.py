"""Drawing one token from a row of logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.ops import logprobs as logprob_ops
from jaxrl_single.sampler import decode


def _draw_at(row, uniforms, temperature=1.0):
    count = len(uniforms)
    rows = jnp.broadcast_to(jnp.asarray(row, jnp.float32), (count, len(row)))
    table = logprob_ops.log_softmax(rows, temperature)
    return [np.asarray(x) for x in jax.jit(decode.draw)(table, jnp.asarray(uniforms))]


def _softmax(row, temperature):
    scaled = np.asarray(row, np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max())
    return probabilities / probabilities.sum()


@pytest.mark.parametrize("vocab_size", [37, 300])  # one level and two
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_every_token_gets_its_share_of_the_unit_interval(temperature, vocab_size):
    row = np.random.default_rng(0).normal(size=vocab_size)
    count = 20_000
    uniforms = (np.arange(count, dtype=np.float32) + 0.5) / count
    tokens, logprobs, entropies = _draw_at(row, uniforms, temperature)
    expected = _softmax(row, temperature)
    # The ends of an interval may fall on either side: 2 points, and a little float32 rounding.
    np.testing.assert_allclose(
        np.bincount(tokens, minlength=vocab_size) / count, expected, atol=3 / count
    )
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
    """Rows of tiny and zero probabilities, thresholds at and around every partial sum."""
    rng = np.random.default_rng(1)
    for vocab_size in (60, 60, 300, 300, 1000):
        row = rng.normal(size=vocab_size) * 8
        row[rng.random(vocab_size) < 0.5] = -np.inf
        sums = np.cumsum(_softmax(row, 1.0)).astype(np.float32)
        near = np.concatenate([sums, np.nextafter(sums, 0), np.nextafter(sums, 2)])
        uniforms = np.clip(near, 0, np.nextafter(np.float32(1), np.float32(0)))
        tokens, logprobs, _ = _draw_at(row, uniforms.astype(np.float32))
        assert np.isfinite(row[tokens]).all()
        assert np.isfinite(logprobs).all()


def test_tokens_are_in_the_order_of_their_sums():
    """Against a search in numpy's float64 sums, wherever rounding cannot decide."""
    rng = np.random.default_rng(2)
    for vocab_size in (5, 256, 257, 5000):
        row = rng.normal(size=vocab_size) * 3
        sums = np.cumsum(_softmax(row, 1.0))
        uniforms = rng.random(2000).astype(np.float32)
        clear = np.abs(sums[None, :] - uniforms[:, None]).min(axis=1) > 1e-6
        tokens, _, _ = _draw_at(row, uniforms)
        expected = np.searchsorted(sums, uniforms, side="right")
        assert clear.sum() > 1000
        np.testing.assert_array_equal(tokens[clear], expected[clear])


def test_a_certain_token_has_log_prob_and_entropy_zero():
    tokens, logprobs, entropies = _draw_at([0.0, 2000.0, 0.0], np.float32([0.0, 0.9]))
    assert list(tokens) == [1, 1]
    assert list(logprobs) == [0.0, 0.0]
    assert list(entropies) == [0.0, 0.0]
