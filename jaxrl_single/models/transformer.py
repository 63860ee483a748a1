"""The decoder: embedding, stacked layers, final norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import attention, layers, moe, rope
from jaxrl_single.models import config as config_lib


class Layer(nnx.Module):
    """Pre-norm attention, then a pre-norm MLP of hidden width `d_ff`, or experts if that is 0."""

    def __init__(self, config: config_lib.ModelConfig, d_ff: int, *, rngs: nnx.Rngs) -> None:
        size, eps, dtype = config.d_model, config.norm_eps, config.dtype
        self.is_moe = d_ff == 0
        self.has_shared = self.is_moe and config.num_shared_experts > 0
        self.moe_form = config.moe_form
        self.attention_norm = layers.RMSNorm(size, eps=eps, dtype=dtype)
        self.attention = attention.Attention(config, rngs=rngs)
        self.mlp_norm = layers.RMSNorm(size, eps=eps, dtype=dtype)
        if self.is_moe:
            self.router = moe.Router(config, rngs=rngs)
            self.experts = moe.Experts(config, rngs=rngs)
        else:
            self.mlp = layers.Mlp(config, d_ff, rngs=rngs)
        if self.has_shared:
            width = config.num_shared_experts * config.d_ff
            self.shared_experts = layers.Mlp(config, width, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        turn: rope.Rotation,
        segment_ids: jax.Array,
        expert_ids: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Packed rows, x [B, T, D]; expert_ids [B, T, k] or None.

        Also [B, T] bool, whether the router itself would have taken other experts than expert_ids.
        """
        x = x + self.attention(self.attention_norm(x), turn, segment_ids)
        normed = self.mlp_norm(x)
        if not self.is_moe:
            return x + self.mlp(normed), None
        flat, rerouted = normed.reshape(-1, x.shape[-1]), None
        if expert_ids is not None:
            expert_ids = expert_ids.reshape(flat.shape[0], -1)
            rerouted = self.router.disagrees(flat, expert_ids).reshape(x.shape[:-1])
        mixing, chosen = self.router(flat, expert_ids)
        x = x + self.experts(flat, mixing, chosen, form=self.moe_form).reshape(x.shape)
        return x + self.shared_experts(normed) if self.has_shared else x, rerouted


class Transformer(nnx.Module):
    """Tokens to hidden states. Parameters of `dense_layers` and `layers` lead with a layer axis."""

    def __init__(
        self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs, unembedding: bool
    ) -> None:
        self.config = config
        self.embedding = layers.Embedding(config, rngs=rngs)
        if config.num_dense_layers:
            self.dense_layers = _stack(config, rngs, config.num_dense_layers, config.dense_d_ff)
        d_ff = 0 if config.num_experts else config.d_ff
        self.layers = _stack(config, rngs, config.num_layers - config.num_dense_layers, d_ff)
        self.final_norm = layers.RMSNorm(config.d_model, eps=config.norm_eps, dtype=config.dtype)
        if unembedding and not config.tie_embeddings:
            self.unembedding = layers.Embedding(config, rngs=rngs)

    def hidden(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        expert_ids: jax.Array | None = None,
    ) -> jax.Array:
        """Packed rows [B, T] -> [B, T, D] after the final norm; see models/api.py."""
        return self.replay(tokens, positions, segment_ids, expert_ids)[0]

    def replay(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        expert_ids: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """`hidden`, and [B, T, L] where the routers disagree with expert_ids; see models/api.py."""
        real = segment_ids > 0
        x = self._embed(jnp.where(real, tokens, 0))
        turn = rope.rotation(self.config, jnp.where(real, positions, 0))
        if expert_ids is not None:
            expert_ids = jnp.where(real[..., None, None], expert_ids, -1).transpose(2, 0, 1, 3)
        if self.config.num_dense_layers:
            x, _ = self._run(self.dense_layers, x, turn, segment_ids, None)
        x, rerouted = self._run(self.layers, x, turn, segment_ids, expert_ids)
        return self.final_norm(x), None if rerouted is None else rerouted.transpose(1, 2, 0)

    def table(self) -> jax.Array:
        """The unembedding [V, D]."""
        owner = self.embedding if self.config.tie_embeddings else self.unembedding
        return owner.table[...]

    def _run(
        self,
        stack: Layer,
        x: jax.Array,
        turn: rope.Rotation,
        segment_ids: jax.Array,
        expert_ids: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """x [B, T, D] through the layers of a stack, and their second results, stacked."""

        def step(x: jax.Array, xs: tuple[Any, jax.Array | None]) -> tuple[jax.Array, Any]:
            params, chosen = xs
            return nnx.merge(graph, params)(x, turn, segment_ids, chosen)

        graph, stacked = nnx.split(stack, graph=False)
        if self.config.remat:
            step = jax.checkpoint(step, prevent_cse=False)
        return jax.lax.scan(step, x, (stacked, expert_ids))

    def _embed(self, tokens: jax.Array) -> jax.Array:
        return jnp.take(self.embedding.table[...], tokens, axis=0, mode="clip")


def _stack(config: config_lib.ModelConfig, rngs: nnx.Rngs, num_layers: int, d_ff: int) -> Layer:
    """A layer whose parameters are those of several, stacked; `d_ff` as in `Layer`."""

    def make(rngs: nnx.Rngs) -> Layer:
        return Layer(config, d_ff, rngs=rngs)

    def init(key: jax.Array) -> nnx.State:
        return nnx.state(make(nnx.Rngs(key)), graph=False)

    states = jax.vmap(init)(jax.random.split(rngs.params(), num_layers))
    graph, _ = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0)), graph=False), graph=False)
    return nnx.merge(graph, states)
