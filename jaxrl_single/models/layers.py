"""Small parts of a decoder: norms, the embedding, the gated MLP."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import matmul


def weight(rngs: nnx.Rngs, shape: tuple[int, ...], *, std: float, dtype: str) -> nnx.Param:
    """A normally distributed parameter; drawn in float32, so every dtype has the same draw."""
    return nnx.Param((std * jax.random.normal(rngs.params(), shape)).astype(dtype))


class RMSNorm(nnx.Module):
    """Divides the last axis by its root mean square, in float32, and scales it."""

    def __init__(self, size: int, *, eps: float, dtype: str) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((size,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        return rms_norm(x, self.scale[...], eps=self.eps)


class Embedding(nnx.Module):
    """A [V, D] table; `embedding` reads its rows, `unembedding` projects onto them."""

    def __init__(self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs) -> None:
        shape = (config.vocab_size, config.d_model)
        self.table = weight(rngs, shape, std=config.d_model**-0.5, dtype=config.dtype)


class Mlp(nnx.Module):
    """SwiGLU of hidden width f: down(silu(gate x) * up x)."""

    def __init__(self, config: config_lib.ModelConfig, f: int, *, rngs: nnx.Rngs) -> None:
        d = config.d_model
        self.gate = weight(rngs, (d, f), std=d**-0.5, dtype=config.dtype)
        self.up = weight(rngs, (d, f), std=d**-0.5, dtype=config.dtype)
        self.down = weight(rngs, (f, d), std=output_std(f, config), dtype=config.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = (matmul.matmul(x, kernel[...]) for kernel in (self.gate, self.up))
        return matmul.matmul(matmul.swiglu(gate, up), self.down[...])


def rms_norm(x: jax.Array, scale: jax.Array, *, eps: float) -> jax.Array:
    """x [..., D] over its root mean square, times scale, whose axes are the last ones of x."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    scale = jnp.expand_dims(scale, range(x.ndim - scale.ndim))
    return (wide * inverse).astype(x.dtype) * scale


def output_std(fan_in: int, config: config_lib.ModelConfig) -> float:
    """Of projections that add to the residual stream: its variance stays near 1 over L layers."""
    return (2 * config.num_layers * fan_in) ** -0.5
