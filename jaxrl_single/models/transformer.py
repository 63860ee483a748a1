"""The decoder: embedding, stacked layers, final norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import attention, kv_cache, layers, moe
from jaxrl_single.models import config as config_lib


class Layer(nnx.Module):
    """Pre-norm attention, then a pre-norm MLP or mixture of experts."""

    def __init__(self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs) -> None:
        size, eps, dtype = config.d_model, config.norm_eps, config.dtype
        self.is_moe = config.num_experts > 0
        self.moe_form = config.moe_form
        self.attention_norm = layers.RMSNorm(size, eps=eps, dtype=dtype)
        self.attention = attention.Attention(config, rngs=rngs)
        self.mlp_norm = layers.RMSNorm(size, eps=eps, dtype=dtype)
        if self.is_moe:
            self.router = moe.Router(config, rngs=rngs)
            self.experts = moe.Experts(config, rngs=rngs)
        else:
            self.mlp = layers.Mlp(config, rngs=rngs)

    def __call__(self, x: jax.Array, turn: layers.Rotation, segment_ids: jax.Array) -> jax.Array:
        """Packed rows, x [B, T, D]."""
        x = x + self.attention(self.attention_norm(x), turn, segment_ids)
        return x + self._feed_forward(self.mlp_norm(x), self.moe_form)

    def prefill(
        self,
        x: jax.Array,
        turn: layers.Rotation,
        history: kv_cache.LayerCache,
        starts: jax.Array,
        lengths: jax.Array,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """x [R, P, D]; also returns the new keys and values [R, P, K, H]."""
        mixed, k, v = self.attention.prefill(self.attention_norm(x), turn, history, starts, lengths)
        x = x + mixed
        return x + self._feed_forward(self.mlp_norm(x), self.moe_form), (k, v)

    def decode(
        self,
        x: jax.Array,
        turn: layers.Rotation,
        cache: kv_cache.LayerCache,
        positions: jax.Array,
        active: jax.Array,
    ) -> tuple[jax.Array, kv_cache.LayerCache]:
        """One token per slot, x [S, D]; also returns the cache with it."""
        mixed, cache = self.attention.decode(self.attention_norm(x), turn, cache, positions, active)
        x = x + mixed
        # Dense always: the other forms group a token with others, and its rounding with it.
        return x + self._feed_forward(self.mlp_norm(x), "dense"), cache

    def _feed_forward(self, x: jax.Array, moe_form: str) -> jax.Array:
        if not self.is_moe:
            return self.mlp(x)
        flat = x.reshape(-1, x.shape[-1])
        mixing, chosen = self.router(flat)
        return self.experts(flat, mixing, chosen, form=moe_form).reshape(x.shape)


class Transformer(nnx.Module):
    """Tokens to hidden states. Parameters of `layers` carry a leading layer axis."""

    def __init__(
        self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs, unembedding: bool
    ) -> None:
        self.config = config
        self.embedding = layers.Embedding(config, rngs=rngs)
        self.layers = _stack(config, rngs)
        self.final_norm = layers.RMSNorm(config.d_model, eps=config.norm_eps, dtype=config.dtype)
        if unembedding and not config.tie_embeddings:
            self.unembedding = layers.Embedding(config, rngs=rngs)

    def hidden(self, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """Packed rows [B, T] -> [B, T, D] after the final norm; see models/api.py."""
        real = segment_ids > 0
        x = self._embed(jnp.where(real, tokens, 0))
        turn = self._rotation(jnp.where(real, positions, 0))

        def step(layer: Layer, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return layer(x, turn, segment_ids), None

        x, _ = self._scan(step, x, None)
        return self.final_norm(x)

    def prefill(
        self,
        cache: kv_cache.Cache,
        slots: jax.Array,
        tokens: jax.Array,
        starts: jax.Array,
        lengths: jax.Array,
    ) -> kv_cache.Cache:
        """Writes the keys and values of tokens [R, P] into the cache; see models/api.py."""
        width, cache_length = tokens.shape[1], cache[0][0].shape[-1]
        if width > cache_length:
            raise ValueError(
                f"prefill of {width} tokens does not fit a cache of {cache_length}; "
                "use shorter prefills or a longer cache"
            )
        real = jnp.arange(width)[None, :] < lengths[:, None]
        slots = jnp.where(lengths > 0, slots, 0)
        starts = jnp.where(lengths > 0, starts, 0)
        x = self._embed(jnp.where(real, tokens, 0))
        turn = self._rotation(starts[:, None] + jnp.arange(width)[None, :])
        history = tuple(jnp.stack([part[i][slots] for part in cache]) for i in range(2))

        def step(layer: Layer, x: jax.Array, rows: kv_cache.LayerCache):
            return layer.prefill(x, turn, rows, starts, lengths)

        _, (k, v) = self._scan(step, x, history)
        return [
            kv_cache.write(part, slots, k[i], v[i], starts, lengths) for i, part in enumerate(cache)
        ]

    def decode(
        self, cache: kv_cache.Cache, tokens: jax.Array, positions: jax.Array, active: jax.Array
    ) -> tuple[jax.Array, kv_cache.Cache]:
        """One token per slot [S] -> logits [S, V] float32 and the cache; see models/api.py."""
        positions = jnp.where(active, positions, 0)
        x = self._embed(jnp.where(active, tokens, 0))
        turn = self._rotation(positions)
        graph, stacked = nnx.split(self.layers, graph=False)
        new_cache = []
        for i, part in enumerate(cache):
            layer = nnx.merge(graph, jax.tree.map(lambda leaf, i=i: leaf[i], stacked))
            x, part = layer.decode(x, turn, part, positions, active)
            new_cache.append(part)
        table = self.table()
        logits = jnp.einsum(
            "sd,vd->sv", self.final_norm(x), table, preferred_element_type=jnp.float32
        )
        return logits, new_cache

    def table(self) -> jax.Array:
        """The unembedding [V, D]."""
        owner = self.embedding if self.config.tie_embeddings else self.unembedding
        return owner.table[...]

    def _embed(self, tokens: jax.Array) -> jax.Array:
        return jnp.take(self.embedding.table[...], tokens, axis=0, mode="clip")

    def _rotation(self, positions: jax.Array) -> layers.Rotation:
        config = self.config
        return layers.rotation(positions, head_size=config.head_size, theta=config.rope_theta)

    def _scan(self, step: Callable, x: jax.Array, inputs: Any) -> tuple[jax.Array, Any]:
        """Applies step(layer, x, inputs of the layer) -> (x, outputs) over the layers."""
        graph, stacked = nnx.split(self.layers, graph=False)

        def body(x: jax.Array, xs: tuple[Any, Any]):
            params, rows = xs
            return step(nnx.merge(graph, params), x, rows)

        if self.config.remat:
            body = jax.checkpoint(body, prevent_cse=False)
        return jax.lax.scan(body, x, (stacked, inputs))


def _stack(config: config_lib.ModelConfig, rngs: nnx.Rngs) -> Layer:
    """A layer whose parameters are those of L layers, stacked."""

    def init(key: jax.Array) -> nnx.State:
        return nnx.state(Layer(config, rngs=nnx.Rngs(key)), graph=False)

    states = jax.vmap(init)(jax.random.split(rngs.params(), config.num_layers))
    graph, _ = nnx.split(
        nnx.eval_shape(lambda: Layer(config, rngs=nnx.Rngs(0)), graph=False), graph=False
    )
    return nnx.merge(graph, states)
