"""Grouped-query attention in three uses: packed rows, prefill and decode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import blocked_attention, kv_cache, layers, matmul
from jaxrl_single.models import config as config_lib

_MASKED = -1e30  # finite, so that a query that may attend nothing gives a mean, not NaN


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

    def prefill(
        self,
        x: jax.Array,
        turn: layers.Rotation,
        history: kv_cache.LayerCache,
        starts: jax.Array,
        lengths: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Attends to what the cache holds before `starts`, and causally to the new tokens.

        Args:
          x: [R, P, D], `lengths` [R] of its tokens are real.
          history: the rows' caches, k [R, K, H, C] and v [R, K, C, H].
          starts: [R] int, tokens that the cache holds of each row.

        Returns:
          [R, P, D] and the new keys and values [R, P, K, H].
        """
        q, k, v = self._project(x, turn)
        q = self._grouped(q)
        old_k, old_v = history
        new = jnp.arange(x.shape[1])
        old_scores = jnp.einsum("rpkgh,rkhc->rkgpc", q, old_k, preferred_element_type=jnp.float32)
        new_scores = jnp.einsum("rpkgh,rjkh->rkgpj", q, k, preferred_element_type=jnp.float32)
        old_mask = jnp.arange(old_k.shape[-1])[None, :] < starts[:, None]
        new_mask = (new[:, None] >= new[None, :])[None] & (new[None, :] < lengths[:, None])[:, None]
        scores = jnp.concatenate([old_scores, new_scores], axis=-1)
        mask = jnp.concatenate(
            [
                jnp.broadcast_to(old_mask[:, None], (*new_mask.shape[:2], old_mask.shape[1])),
                new_mask,
            ],
            axis=-1,
        )
        old, fresh = jnp.split(_weights(scores, mask[:, None, None], v), [old_k.shape[-1]], axis=-1)
        mixed = jnp.einsum("rkgpc,rkch->rpkgh", old, old_v)
        mixed = mixed + jnp.einsum("rkgpj,rjkh->rpkgh", fresh, v)
        return self._output(mixed), k, v

    def decode(
        self,
        x: jax.Array,
        turn: layers.Rotation,
        cache: kv_cache.LayerCache,
        positions: jax.Array,
        active: jax.Array,
    ) -> tuple[jax.Array, kv_cache.LayerCache]:
        """One token per slot, x [S, D]: writes its key and value, attends to 0 .. positions."""
        q, k, v = self._project(x, turn)
        slots = jnp.arange(x.shape[0])
        cache = kv_cache.write(
            cache, slots, k[:, None], v[:, None], positions, active.astype(jnp.int32)
        )
        keys, values = cache
        scores = jnp.einsum(
            "skgh,skhc->skgc", self._grouped(q), keys, preferred_element_type=jnp.float32
        )
        mask = jnp.arange(keys.shape[-1])[None, :] <= positions[:, None]
        weights = _weights(scores, mask[:, None, None], values)
        return self._output(jnp.einsum("skgc,skch->skgh", weights, values)), cache

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


def _weights(scores: jax.Array, mask: jax.Array, values: jax.Array) -> jax.Array:
    """Softmax over the last axis in float32, as the dtype of the values."""
    return jax.nn.softmax(jnp.where(mask, scores, _MASKED), axis=-1).astype(values.dtype)
