"""The distribution: worked numbers, and the chunked projection against plain formulas."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxrl_single.ops import logprobs

B, T, D, V = 3, 10, 8, 17
CHUNK = 4  # does not divide T

log_softmax = jax.jit(logprobs.log_softmax)
entropy = jax.jit(logprobs.entropy)
forward = jax.jit(logprobs.token_logprobs, static_argnames="chunk")


def make_inputs(seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(B, T, D)).astype(np.float32)
    unembedding = rng.normal(size=(V, D)).astype(np.float32)
    tokens = rng.integers(0, V, size=(B, T)).astype(np.int32)
    temperature = rng.uniform(0.5, 1.5, size=(B, T)).astype(np.float32)
    cotangent = rng.normal(size=(B, T)).astype(np.float32)
    return hidden, unembedding, tokens, temperature, cotangent


def reference(hidden, unembedding, tokens, temperature, cotangent):
    """Float64: log-probs, entropies, and both gradients of sum(cotangent x log-probs)."""
    logits = np.einsum("btd,vd->btv", hidden.astype(np.float64), unembedding)
    logits /= temperature[..., None]
    table = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    probabilities = np.exp(table)
    score = np.eye(V)[tokens] - probabilities
    d_logits = (cotangent / temperature)[..., None] * score
    return (
        np.take_along_axis(table, tokens[..., None], axis=-1)[..., 0],
        -np.sum(probabilities * table, axis=-1),
        np.einsum("btv,vd->btd", d_logits, unembedding),
        np.einsum("btv,btd->vd", d_logits, hidden),
    )


@functools.partial(jax.jit, static_argnames="chunk")
def gradients(hidden, unembedding, tokens, temperature, cotangent, *, chunk=CHUNK):
    def loss(hidden, unembedding):
        values, _ = logprobs.token_logprobs(hidden, unembedding, tokens, temperature, chunk=chunk)
        return jnp.sum(jnp.where(cotangent != 0, values * cotangent, 0.0))

    return jax.grad(loss, argnums=(0, 1))(hidden, unembedding)


@pytest.mark.parametrize(
    ("temperature", "probabilities"),
    [(1.0, [1 / 7, 2 / 7, 4 / 7]), (0.5, [1 / 21, 4 / 21, 16 / 21])],
)
def test_log_softmax_golden_with_temperature(temperature, probabilities):
    logits = np.log(np.array([1.0, 2.0, 4.0], np.float32))
    got = log_softmax(logits, temperature)
    np.testing.assert_allclose(np.exp(got), probabilities, rtol=1e-6)
    expected_entropy = -sum(p * np.log(p) for p in probabilities)
    np.testing.assert_allclose(entropy(got), expected_entropy, rtol=1e-6)


def test_temperature_per_row_broadcasts():
    logits = np.log(np.array([[1.0, 3.0], [1.0, 3.0]], np.float32))
    got = np.exp(log_softmax(logits, np.array([[1.0], [0.5]])))
    np.testing.assert_allclose(got, [[0.25, 0.75], [0.1, 0.9]], rtol=1e-6)


def test_forbidden_tokens_have_no_share_in_entropy_or_its_gradient():
    finite = np.zeros(2, np.float32)

    @jax.jit
    @jax.value_and_grad
    def total_entropy(finite):
        return logprobs.entropy(logprobs.log_softmax(jnp.append(finite, -jnp.inf), 1.0))

    value, gradient = total_entropy(finite)
    np.testing.assert_allclose(value, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(gradient, [0.0, 0.0], atol=1e-6)


def test_bfloat16_logits_are_computed_in_float32():
    logits = np.array([1.0, 2.0, 3.0])
    got = log_softmax(jnp.asarray(logits, jnp.bfloat16), 1.0)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, logits - np.log(np.sum(np.exp(logits))), rtol=1e-6)


def test_pick_takes_the_entry_and_gives_zero_outside():
    table = jnp.array([[-1.0, -2.0], [-3.0, -4.0], [-5.0, -jnp.inf], [-1.0, -2.0]])
    got = jax.jit(logprobs.pick)(table, jnp.array([1, 0, 7, -2]))
    np.testing.assert_array_equal(got, [-2.0, -3.0, 0.0, 0.0])


@pytest.mark.parametrize("chunk", [CHUNK, 64])
def test_token_logprobs_equal_float64(chunk):
    inputs = make_inputs()
    expected = reference(*inputs)
    got, entropies = forward(*inputs[:4], chunk=chunk)
    np.testing.assert_allclose(got, expected[0], atol=5e-6)
    np.testing.assert_allclose(entropies, expected[1], atol=5e-6)
    d_hidden, d_unembedding = gradients(*inputs, chunk=chunk)
    np.testing.assert_allclose(d_hidden, expected[2], atol=5e-6)
    np.testing.assert_allclose(d_unembedding, expected[3], atol=2e-5)


def test_flat_stream_vmap_and_batch_agree():
    hidden, unembedding, tokens, temperature, _ = make_inputs(1)
    batched = forward(hidden, unembedding, tokens, temperature, chunk=CHUNK)

    def one_row(hidden, tokens, temperature):
        return logprobs.token_logprobs(hidden, unembedding, tokens, temperature, chunk=CHUNK)

    mapped = jax.jit(jax.vmap(one_row))(hidden, tokens, temperature)
    flat = forward(
        hidden.reshape(-1, D), unembedding, tokens.reshape(-1), temperature.reshape(-1), chunk=CHUNK
    )
    for ours, by_vmap, by_flat in zip(batched, mapped, flat, strict=True):
        np.testing.assert_allclose(by_vmap, ours, atol=1e-6)
        np.testing.assert_allclose(by_flat.reshape(B, T), ours, atol=1e-6)


def test_trainer_and_sampler_see_one_distribution():
    """The sampler's formula on whole logits gives the trainer's numbers, temperature included."""
    hidden, unembedding, tokens, temperature, _ = make_inputs(2)
    for temperature_of_all in (0.5, 1.0, 2.0):
        whole = log_softmax(np.matmul(hidden, unembedding.T), temperature_of_all)
        temperature = np.full_like(temperature, temperature_of_all)
        trainer = forward(hidden, unembedding, tokens, temperature, chunk=CHUNK)
        np.testing.assert_allclose(trainer[0], jax.jit(logprobs.pick)(whole, tokens), atol=2e-6)
        np.testing.assert_allclose(trainer[1], entropy(whole), atol=2e-6)


def test_probabilities_of_all_tokens_sum_to_one():
    hidden, unembedding, tokens, temperature, _ = make_inputs(3)
    of_token = [
        forward(hidden, unembedding, np.full_like(tokens, token), temperature, chunk=CHUNK)[0]
        for token in range(V)
    ]
    np.testing.assert_allclose(np.sum(np.exp(np.stack(of_token)), axis=0), 1.0, rtol=1e-5)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e38])
def test_tokens_without_cotangent_change_no_gradient_bitwise(garbage):
    hidden, unembedding, tokens, temperature, cotangent = make_inputs(4)
    unused = np.random.default_rng(5).random((B, T)) < 0.4
    cotangent[unused] = 0.0
    clean = gradients(hidden, unembedding, tokens, temperature, cotangent)
    hidden[unused], temperature[unused], tokens[unused] = garbage, garbage, 2**30
    dirty = gradients(hidden, unembedding, tokens, temperature, cotangent)
    for before, after in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(np.asarray(dirty[0])[unused], 0.0)


def test_extreme_logits_stay_finite():
    hidden = jnp.array([[1e4, 0.0], [-1e4, 0.0]])
    unembedding = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.5, 0.0]])
    got, entropies = forward(hidden, unembedding, jnp.array([1, 1]), jnp.ones(2), chunk=CHUNK)
    np.testing.assert_allclose(got, [-2e4, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(entropies, [0.0, 0.0])


def test_bfloat16_hidden_gives_float32_logprobs_and_bfloat16_gradients():
    hidden, unembedding, tokens, temperature, cotangent = make_inputs(6)
    low = [jnp.asarray(x, jnp.bfloat16) for x in (hidden, unembedding)]
    got, entropies = forward(*low, tokens, temperature, chunk=CHUNK)
    assert got.dtype == entropies.dtype == jnp.float32
    exact = [np.asarray(x, np.float32) for x in low]
    expected = reference(*exact, tokens, temperature, cotangent)
    np.testing.assert_allclose(got, expected[0], atol=1e-5)  # products of bf16 are exact in f32
    for gradient, value in zip(
        gradients(*low, tokens, temperature, cotangent), expected[2:], strict=True
    ):
        assert gradient.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(gradient, np.float32), value, rtol=0.02, atol=0.03)


def largest_over_vocabulary(jaxpr):
    """Size of the largest array with the vocabulary as its last axis, inner jaxprs included."""
    shapes = [variable.aval.shape for e in jaxpr.eqns for variable in e.outvars]
    sizes = [int(np.prod(shape)) for shape in shapes if shape[-1:] == (V,)]
    inner = [j for e in jaxpr.eqns for j in jax.extend.core.jaxprs_in_params(e.params)]
    return max([0, *sizes, *map(largest_over_vocabulary, inner)])


@pytest.mark.parametrize("chunk", [3, 5])
def test_logits_of_all_tokens_never_exist(chunk):
    hidden, unembedding, *rest = make_inputs()
    jaxpr = jax.make_jaxpr(lambda h, u: gradients(h, u, *rest, chunk=chunk))(hidden, unembedding)
    assert largest_over_vocabulary(jaxpr.jaxpr) == B * chunk * V


def test_gradient_has_no_scatter():
    assert "scatter" not in gradients.lower(*make_inputs()).as_text()


def test_rows_stay_on_their_devices():
    """With rows sharded over 8 devices nothing is gathered; only dU needs an all-reduce."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(7)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    arrays = (
        rng.normal(size=(8, T, D)).astype(np.float32),
        rng.normal(size=(V, D)).astype(np.float32),
        rng.integers(0, V, size=(8, T)).astype(np.int32),
        np.ones((8, T), np.float32),
        rng.normal(size=(8, T)).astype(np.float32),
    )
    one_device = gradients(*arrays)
    whole = NamedSharding(mesh, PartitionSpec())
    sharded = [jax.device_put(x, whole if i == 1 else rows) for i, x in enumerate(arrays)]
    compiled = gradients.lower(*sharded).compile()
    text = compiled.as_text()
    assert "all-gather" not in text
    assert "all-to-all" not in text
    for ours, plain in zip(compiled(*sharded), one_device, strict=True):
        np.testing.assert_allclose(ours, plain, atol=1e-5)


@pytest.mark.parametrize("chunk", [0, -4])
def test_chunk_must_be_positive(chunk):
    hidden, unembedding, tokens, temperature, _ = make_inputs()
    with pytest.raises(ValueError, match=f"chunk is {chunk}"):
        logprobs.token_logprobs(hidden, unembedding, tokens, temperature, chunk=chunk)
