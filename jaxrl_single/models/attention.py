"""Grouped-query attention over packed rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import blocked_attention, layers, matmul, rope
from jaxrl_single.models import config as config_lib


class Attention(nnx.Module):
    """Projections with or without biases, q/k RMSNorm per head or none, then rotary positions."""

    def __init__(self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        d, dtype = config.d_model, config.dtype
        queries = config.num_heads * config.head_size
        keys = config.num_kv_heads * config.head_size
        self.q_proj = layers.weight(rngs, (d, queries), std=d**-0.5, dtype=dtype)
        self.k_proj = layers.weight(rngs, (d, keys), std=d**-0.5, dtype=dtype)
        self.v_proj = layers.weight(rngs, (d, keys), std=d**-0.5, dtype=dtype)
        out_std = layers.output_std(queries, config)
        self.o_proj = layers.weight(rngs, (queries, d), std=out_std, dtype=dtype)
        if config.attention_bias:
            self.q_bias = nnx.Param(jnp.zeros((queries,), dtype))
            self.k_bias = nnx.Param(jnp.zeros((keys,), dtype))
            self.v_bias = nnx.Param(jnp.zeros((keys,), dtype))
        if config.qk_norm:
            self.q_norm = layers.RMSNorm(config.head_size, eps=config.norm_eps, dtype=dtype)
            self.k_norm = layers.RMSNorm(config.head_size, eps=config.norm_eps, dtype=dtype)

    def __call__(self, x: jax.Array, turn: rope.Rotation, segment_ids: jax.Array) -> jax.Array:
        """Causal attention within segments of packed rows, x [B, T, D] -> [B, T, D]."""
        q, k, v = self._project(x, turn)
        return self._output(blocked_attention.attend(self._grouped(q), k, v, segment_ids))

    def _project(self, x: jax.Array, turn: rope.Rotation) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x [..., D] -> q [..., N, H] (scaled by H ** -0.5), k and v [..., K, H]."""
        kernels = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (matmul.matmul(x, kernel[...]) for kernel in kernels)
        if self.config.attention_bias:
            biases = (self.q_bias, self.k_bias, self.v_bias)
            q, k, v = (_plus(part, bias) for part, bias in zip((q, k, v), biases, strict=True))
        size = self.config.head_size
        q, k, v = (part.reshape(*x.shape[:-1], -1, size) for part in (q, k, v))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rope.rotate(q, turn) * size**-0.5, rope.rotate(k, turn), v

    def _grouped(self, q: jax.Array) -> jax.Array:
        """[..., N, H] -> [..., K, G, H]: the G query heads of each key/value head."""
        config = self.config
        shape = (config.num_kv_heads, config.queries_per_kv, config.head_size)
        return q.reshape(*q.shape[:-2], *shape)

    def _output(self, mixed: jax.Array) -> jax.Array:
        """[..., K, G, H] -> [..., D]."""
        flat = mixed.reshape(*mixed.shape[:-3], -1)
        return matmul.matmul(flat, self.o_proj[...])


def _plus(x: jax.Array, bias: nnx.Param) -> jax.Array:
    """x [..., F] + bias [F]."""
    return x + jnp.expand_dims(bias[...], range(x.ndim - 1))
