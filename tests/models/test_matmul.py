"""Hand-written gradients against what JAX derives from the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.models import matmul, platform


def _gradients(fn, *arrays):
    cotangent = np.random.default_rng(3).normal(size=jax.eval_shape(fn, *arrays).shape)
    return jax.jit(jax.grad(lambda *xs: jnp.sum(fn(*xs) * cotangent.astype(np.float32)), (0, 1)))(
        *arrays
    )


@pytest.mark.parametrize("leading", [(6,), (2, 3)])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_product_has_the_plain_value_and_gradients(leading, on_cpu, monkeypatch):
    monkeypatch.setattr(platform, "on_cpu", lambda: on_cpu)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(*leading, 5)).astype(np.float32)
    w = rng.normal(size=(5, 4)).astype(np.float32)

    np.testing.assert_allclose(matmul.matmul(x, w), x @ w, rtol=1e-6, atol=1e-6)
    for got, want in zip(
        _gradients(matmul.matmul, x, w), _gradients(jnp.matmul, x, w), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_gate_has_the_plain_value_and_gradients():
    gate = np.linspace(-12, 12, 25, dtype=np.float32)
    up = np.random.default_rng(1).normal(size=25).astype(np.float32)

    def plain(gate, up):
        return gate / (1 + jnp.exp(-gate)) * up

    np.testing.assert_allclose(matmul.swiglu(gate, up), plain(gate, up), rtol=1e-5, atol=1e-6)
    for got, want in zip(
        _gradients(matmul.swiglu, gate, up), _gradients(plain, gate, up), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_gate_far_out_has_finite_gradients():
    gate = np.array([-200.0, 200.0], np.float32)

    d_gate, d_up = jax.grad(lambda *xs: jnp.sum(matmul.swiglu(*xs)), (0, 1))(
        gate, np.ones_like(gate)
    )

    np.testing.assert_allclose(d_gate, [0, 1], atol=1e-6)
    np.testing.assert_allclose(d_up, [0, 200], atol=1e-6)
