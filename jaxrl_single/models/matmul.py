"""Products with weights, and the gate of an MLP, with gradients that XLA:CPU computes well."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_single.models import platform


@jax.custom_vjp
def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """x [..., D] @ w [D, F] -> [..., F].

    The gradient of w is taken as x^T g over the flattened tokens, with x first: XLA's own choice,
    g^T x, writes a transposed copy of g in a strided loop. And g is finished before the two dots
    that read it, or its elementwise work would be redone inside that loop.
    """
    return x @ w


def _matmul_forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ w, (x, w)


def _matmul_backward(
    residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = residuals
    gradient = platform.separate(gradient)
    dx = jnp.einsum("...f,df->...d", gradient, w)
    if platform.on_cpu():
        x = x.reshape(-1, x.shape[-1])
        gradient = gradient.reshape(-1, gradient.shape[-1])
    return dx, jnp.einsum("...d,...f->df", x, gradient)


matmul.defvjp(_matmul_forward, _matmul_backward)


@jax.custom_vjp
def swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """silu(gate) * up (arXiv:2002.05202); keeps only its two arguments for the gradient."""
    return jax.nn.silu(gate) * up


def _swiglu_forward(
    gate: jax.Array, up: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return swiglu(gate, up), (gate, up)


def _swiglu_backward(
    residuals: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    gate, up = residuals
    chance = jax.nn.sigmoid(gate)
    slope = chance * (1 + gate * (1 - chance))
    return gradient * up * slope, gradient * gate * chance


swiglu.defvjp(_swiglu_forward, _swiglu_backward)
