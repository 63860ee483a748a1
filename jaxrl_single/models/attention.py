"""Grouped-query attention over packed rows."""

from __future__ import annotations

import jax
from flax import nnx

from jaxrl_single.models import blocked_attention, layers, matmul
from jaxrl_single.models import config as config_lib


class Attention(nnx.Module):
    """Attention of the Qwen3 family: q/k RMSNorm per head, then rotary positions."""

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
        self.q_norm = layers.RMSNorm(config.head_size, eps=config.norm_eps, dtype=dtype)
        self.k_norm = layers.RMSNorm(config.head_size, eps=config.norm_eps, dtype=dtype)

    def __call__(self, x: jax.Array, turn: layers.Rotation, segment_ids: jax.Array) -> jax.Array:
        """Causal attention within segments of packed rows, x [B, T, D] -> [B, T, D]."""
        q, k, v = self._project(x, turn)
        return self._output(blocked_attention.attend(self._grouped(q), k, v, segment_ids))

    def _project(
        self, x: jax.Array, turn: layers.Rotation
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x [..., D] -> q [..., N, H] (scaled by H ** -0.5), k and v [..., K, H]."""
        size = self.config.head_size
        q, k, v = (
            matmul.matmul(x, kernel[...]).reshape(*x.shape[:-1], -1, size)
            for kernel in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = layers.rotate(self.q_norm(q), turn) * size**-0.5
        return q, layers.rotate(self.k_norm(k), turn), v

    def _grouped(self, q: jax.Array) -> jax.Array:
        """[..., N, H] -> [..., K, G, H]: the G query heads of each key/value head."""
        config = self.config
        shape = (config.num_kv_heads, config.queries_per_kv, config.head_size)
        return q.reshape(*q.shape[:-2], *shape)

    def _output(self, mixed: jax.Array) -> jax.Array:
        """[..., K, G, H] -> [..., D]."""
        flat = mixed.reshape(*mixed.shape[:-3], -1)
        return matmul.matmul(flat, self.o_proj[...])
