"""The router and the three forms of the experts, against numpy and against each other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy_decoder
import pytest
from flax import nnx

from jaxrl_single.models import config, expert_forms, moe, sizes

TOKENS, EXPERTS, PER_TOKEN, D, F = 30, 4, 2, 6, 5


def _inputs():
    """Expert 2 gets no token at all, expert 0 gets most."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(TOKENS, EXPERTS)) + np.array([2.0, 0.0, -50.0, 0.0])
    chosen = np.argsort(-scores, axis=1)[:, :PER_TOKEN].astype(np.int32)
    mixing = np.zeros((TOKENS, EXPERTS), np.float32)
    np.put_along_axis(mixing, chosen, rng.dirichlet([1, 1], TOKENS).astype(np.float32), axis=1)
    x = rng.normal(size=(TOKENS, D)).astype(np.float32)
    kernels = [
        rng.normal(size=(EXPERTS, *shape)).astype(np.float32) for shape in ((D, F), (D, F), (F, D))
    ]
    return x, mixing, chosen, expert_forms.Kernels(*kernels)


def _value_and_gradients(form):
    x, mixing, chosen, kernels = _inputs()
    cotangent = np.random.default_rng(5).normal(size=x.shape).astype(np.float32)

    @jax.jit
    def run(x, mixing, kernels):
        out, pullback = jax.vjp(
            lambda x, mixing, kernels: expert_forms.FORMS[form](x, mixing, chosen, kernels),
            x,
            mixing,
            kernels,
        )
        return out, pullback(cotangent)

    return run(x, mixing, kernels)


def test_every_form_of_the_config_exists():
    assert tuple(expert_forms.FORMS) == config.MOE_FORMS


@pytest.mark.parametrize("form", config.MOE_FORMS)
def test_each_form_equals_a_loop_over_tokens_and_experts(form, monkeypatch):
    monkeypatch.setattr(expert_forms, "_BLOCK_ROWS", 8)
    x, mixing, _, kernels = _inputs()

    out, _ = _value_and_gradients(form)

    expected = numpy_decoder.mixture(x.astype(np.float64), mixing, *kernels)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["ragged", "blocks"])
def test_the_gradients_of_the_sorted_forms_equal_the_dense_ones(form, monkeypatch):
    monkeypatch.setattr(expert_forms, "_BLOCK_ROWS", 8)
    _, _, chosen, _ = _inputs()

    _, (dx, dmixing, dkernels) = _value_and_gradients(form)
    _, (want_dx, want_dmixing, want_dkernels) = _value_and_gradients("dense")

    np.testing.assert_allclose(dx, want_dx, rtol=1e-4, atol=1e-5)
    # The dense form also knows the slope towards experts that were not chosen; the router
    # multiplies it by 0.
    np.testing.assert_allclose(
        np.take_along_axis(np.asarray(dmixing), chosen, axis=1),
        np.take_along_axis(np.asarray(want_dmixing), chosen, axis=1),
        rtol=1e-4,
        atol=1e-5,
    )
    for got, want in zip(dkernels, want_dkernels, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(got[2], 0)


def test_the_blocks_form_moves_rows_without_a_scatter():
    x, mixing, chosen, kernels = _inputs()

    def total(x, mixing, kernels):
        return expert_forms.blocks(x, mixing, chosen, kernels).sum()

    program = str(jax.make_jaxpr(jax.grad(total, (0, 1, 2)))(x, mixing, kernels))

    assert "gather" in program
    assert "scatter" not in program


@pytest.mark.parametrize("dtype", config.DTYPES)
def test_the_router_keeps_the_largest_and_renormalises_in_float32(dtype):
    shape = sizes.get("tiny_moe", vocab_size=8, dtype=dtype)
    router = moe.Router(shape, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (9, shape.d_model), dtype)

    mixing, chosen = jax.jit(router)(x)

    weights = {"kernel": np.asarray(router.kernel[...], np.float64)}
    expected = [
        numpy_decoder.router_weights(token, weights, shape) for token in np.asarray(x, np.float64)
    ]
    assert mixing.dtype == jnp.float32
    np.testing.assert_allclose(mixing, expected, atol=1e-6)
    np.testing.assert_array_equal(
        np.sort(chosen, axis=1), [np.flatnonzero(row) for row in expected]
    )


def test_the_router_learns_from_the_chosen_experts_only():
    router = moe.Router(sizes.get("tiny_moe", vocab_size=8), rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (1, 64))
    graph, params = nnx.split(router, graph=False)
    chosen = router(x)[1][0]
    value = jnp.zeros((4,)).at[chosen[0]].set(1.0)

    slope = jax.grad(lambda params: (nnx.merge(graph, params)(x)[0][0] * value).sum())(params)

    columns = np.abs(np.asarray(slope["kernel"][...])).sum(axis=0)
    np.testing.assert_array_equal(np.flatnonzero(columns), np.sort(chosen))


def test_given_experts_are_taken_and_weighted_by_the_router_itself():
    rng = np.random.default_rng(3)
    x, kernel = rng.normal(size=(4, 6)).astype(np.float32), rng.normal(size=(6, EXPERTS))
    kernel = kernel.astype(np.float32)
    given = np.array([[3, 0], [-1, -1], [1, 2], [-1, 2]], np.int16)

    shape = sizes.SIZES["tiny_moe"]

    mixing, chosen = moe.route(shape, x, kernel, expert_ids=given)

    own_mixing, own_chosen = moe.route(shape, x, kernel)
    logits = x.astype(np.float64) @ kernel
    for t in (0, 2):
        np.testing.assert_array_equal(chosen[t], given[t])
        shares = np.exp(logits[t, given[t]])
        np.testing.assert_allclose(mixing[t, given[t]], shares / shares.sum(), rtol=1e-5)
        assert np.count_nonzero(mixing[t]) == PER_TOKEN
    for t in (1, 3):
        np.testing.assert_array_equal(chosen[t], own_chosen[t])
        np.testing.assert_array_equal(mixing[t], own_mixing[t])

    def weight_of_expert_3(kernel):
        return moe.route(shape, x[:1], kernel, expert_ids=given[:1])[0][0, 3]

    slope = jax.grad(weight_of_expert_3)(kernel)
    np.testing.assert_array_equal(np.flatnonzero(np.abs(slope).sum(axis=0)), [0, 3])


@pytest.mark.parametrize("router", config.ROUTERS)
@pytest.mark.parametrize("normalize", [True, False])
def test_weights_of_every_kind_of_router(router, normalize):
    shape = dataclasses.replace(
        sizes.SIZES["tiny_moe"], router=router, normalize_experts=normalize, expert_scale=1.5
    )
    rng = np.random.default_rng(4)
    x, kernel = rng.normal(size=(50, 6)), rng.normal(size=(6, EXPERTS))
    weights = {"kernel": kernel, "bias": rng.normal(size=EXPERTS)}
    bias = weights["bias"].astype(np.float32) if router == "sigmoid" else None

    mixing, chosen = moe.route(shape, x.astype(np.float32), kernel.astype(np.float32), bias)

    expected = [numpy_decoder.router_weights(token, weights, shape) for token in x]
    np.testing.assert_allclose(mixing, expected, atol=1e-5)
    np.testing.assert_array_equal(
        np.sort(chosen, axis=1), [np.flatnonzero(row) for row in expected]
    )


def test_the_bias_of_a_router_decides_and_has_no_gradient():
    shape = sizes.SIZES["tiny_glm"]
    rng = np.random.default_rng(5)
    x, kernel = rng.normal(size=(50, 6)).astype(np.float32), np.zeros((6, EXPERTS), np.float32)
    bias = np.array([0.1, 0.3, 0.0, 0.2], np.float32)

    mixing, chosen = moe.route(shape, x, kernel, bias)
    given = jnp.full((50, PER_TOKEN), jnp.array([0, 2]))
    replayed, taken = moe.route(shape, x, kernel, bias, given)

    np.testing.assert_array_equal(chosen, [[1, 3]] * 50)
    np.testing.assert_allclose(mixing, [[0, 0.75, 0, 0.75]] * 50, rtol=1e-6)  # scaled by 1.5
    np.testing.assert_array_equal(taken, given)
    np.testing.assert_allclose(replayed, [[0.75, 0, 0.75, 0]] * 50, rtol=1e-6)
    slopes = jax.grad(lambda *p: moe.route(shape, x, *p)[0][:, 1].sum(), (0, 1))(kernel, bias)
    assert np.abs(slopes[0]).max() > 0
    np.testing.assert_array_equal(slopes[1], 0)
