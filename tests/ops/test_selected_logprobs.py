"""Several ids at each position and whole rows, from one projection; gradients of every output."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.ops import logprobs

B, T, D, V = 2, 7, 5, 11
CHUNK = 3  # does not divide T


def make_inputs(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    hidden, unembedding = rng.normal(size=(B, T, D)), rng.normal(size=(V, D))
    temperature = rng.uniform(0.5, 1.5, size=(B, T))
    ids = tuple(rng.integers(0, V, size=(B, T, width)).astype(np.int32) for width in (1, 4))
    ids[1][..., 1] = ids[1][..., 0]  # a draw with replacement may come twice
    cotangents = tuple(rng.normal(size=(B, T, width)) for width in (1, 4, V))
    of_entropy = rng.normal(size=(B, T))
    floats = (hidden, unembedding, temperature, cotangents, of_entropy)
    hidden, unembedding, temperature, *slopes = jax.tree.map(lambda x: x.astype(dtype), floats)
    return hidden, unembedding, (*ids, None), temperature, tuple(slopes)


def chunked(hidden, unembedding, ids, temperature, *, chunk=CHUNK):
    return logprobs.selected_logprobs(hidden, unembedding, ids, temperature, chunk=chunk)


def plain(hidden, unembedding, ids, temperature):
    """The same with all logits at once and without a rule of its own for gradients."""
    table = jax.nn.log_softmax((hidden @ unembedding.T) / temperature[..., None])
    picked = [jnp.take_along_axis(table, of_one, axis=-1) for of_one in ids[:-1]]
    return (*picked, table), -jnp.sum(jnp.exp(table) * table, axis=-1)


def gradients(function, hidden, unembedding, ids, temperature, slopes):
    def loss(hidden, unembedding):
        outputs = jax.tree.leaves(function(hidden, unembedding, ids, temperature))
        pairs = zip(outputs, jax.tree.leaves(slopes), strict=True)
        return sum(jnp.sum(jnp.where(slope != 0, x * slope, 0.0)) for x, slope in pairs)

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(hidden, unembedding)


def assert_close(left, right, *, atol):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


@pytest.mark.parametrize(("chunk", "narrow"), [(CHUNK, V), (64, V), (CHUNK, V - 1)])
def test_values_and_gradients_equal_the_plain_formula_in_float64(monkeypatch, chunk, narrow):
    """Also where the vocabulary is too wide to be compared with all ids."""
    monkeypatch.setattr(logprobs, "_NARROW", narrow)
    with jax.enable_x64(True):
        *inputs, slopes = make_inputs()
        function = functools.partial(chunked, chunk=chunk)
        found = jax.jit(function)(*inputs)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(np.float64)}
        assert_close(found, plain(*inputs), atol=1e-12)
        slopes_of = gradients(function, *inputs, slopes)
        assert_close(slopes_of, gradients(plain, *inputs, slopes), atol=1e-12)


@pytest.mark.parametrize("output", range(4))
def test_each_output_has_a_gradient_of_its_own(output):
    """The others get symbolic zeros; the fourth output is the entropies."""
    hidden, unembedding, ids, temperature, slopes = make_inputs(1, np.float32)

    def loss(function):
        def of(hidden, unembedding):
            leaf = jax.tree.leaves(function(hidden, unembedding, ids, temperature))[output]
            return jnp.sum(leaf * jax.tree.leaves(slopes)[output])

        return jax.jit(jax.grad(of, argnums=(0, 1)))(hidden, unembedding)

    assert_close(loss(chunked), loss(plain), atol=5e-5)


def test_vmap_scan_and_remat_agree():
    hidden, unembedding, ids, temperature, slopes = make_inputs(2, np.float32)
    whole = gradients(chunked, hidden, unembedding, ids, temperature, slopes)

    def by_rows(hidden, unembedding, ids, temperature):
        row = lambda h, i, t: jax.checkpoint(chunked)(h, unembedding, i, t)  # noqa: E731
        return jax.vmap(row)(hidden, ids, temperature)

    def by_scan(hidden, unembedding, ids, temperature):
        body = lambda _, x: ((), chunked(x[0], unembedding, *x[1:]))  # noqa: E731
        return jax.lax.scan(body, (), (hidden, ids, temperature))[1]

    for function in (by_rows, by_scan):
        found = gradients(function, hidden, unembedding, ids, temperature, slopes)
        assert_close(found, whole, atol=1e-5)


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_tokens_without_cotangents_change_no_gradient_bitwise(garbage):
    hidden, unembedding, ids, temperature, slopes = make_inputs(3, np.float32)
    unused = np.random.default_rng(4).random((B, T)) < 0.4
    for slope in jax.tree.leaves(slopes):
        slope[unused] = 0.0
    clean = gradients(chunked, hidden, unembedding, ids, temperature, slopes)
    hidden[unused], temperature[unused], ids[0][unused] = garbage, garbage, 2**30
    dirty = gradients(chunked, hidden, unembedding, ids, temperature, slopes)
    for before, after in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(np.asarray(dirty[0])[unused], 0.0)


def test_outputs_that_no_gradient_comes_from_are_not_in_the_backward_program():
    hidden, unembedding, ids, temperature, _ = make_inputs(5, np.float32)

    def loss(outputs):
        def of(hidden):
            found = chunked(hidden, unembedding, ids[:2], temperature)
            return jnp.sum(outputs(found))

        return str(jax.make_jaxpr(jax.grad(of))(hidden)).count(f",4,{V}]")

    forward_only = str(
        jax.make_jaxpr(lambda h: chunked(h, unembedding, ids[:2], temperature))(hidden)
    ).count(f",4,{V}]")
    assert forward_only > 0
    assert loss(lambda found: found[0][0]) == forward_only
    assert loss(lambda found: found[0][1]) > forward_only


def test_an_id_outside_the_vocabulary_gives_zero_and_no_gradient_of_its_own():
    hidden, unembedding, _, temperature, _ = make_inputs(6, np.float32)
    outside = np.full((B, T, 2), V, np.int32)
    (found,), _ = chunked(hidden, unembedding, (outside,), temperature)
    np.testing.assert_array_equal(found, np.zeros((B, T, 2)))
