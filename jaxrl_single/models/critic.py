"""The critic: a decoder with a scalar head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import transformer


class ValueHead(nnx.Module):
    """hidden [..., D] -> value [...] float32; starts at value 0 everywhere."""

    def __init__(self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs) -> None:
        del rngs  # nothing is drawn
        self.kernel = nnx.Param(jnp.zeros((config.d_model, 1), config.dtype))
        self.bias = nnx.Param(jnp.zeros((1,), config.dtype))

    def __call__(self, hidden: jax.Array) -> jax.Array:
        kernel = self.kernel[...].astype(jnp.float32)
        return (hidden.astype(jnp.float32) @ kernel)[..., 0] + self.bias[0].astype(jnp.float32)


class Critic(transformer.Transformer):
    """The policy's decoder without its unembedding, and a value head."""

    def __init__(self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs, unembedding=False)
        self.value_head = ValueHead(config, rngs=rngs)

    def values(self, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """[B, T] -> [B, T]: the value of the prefix that ends with each token."""
        return self.value_head(self.hidden(tokens, positions, segment_ids))
