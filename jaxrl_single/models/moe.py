"""Mixture of experts: routers and SwiGLU experts; no token is ever dropped."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import expert_forms, layers


class Router(nnx.Module):
    """The router's kernel [D, E], and the bias [E] of a sigmoid router; see `route`."""

    def __init__(self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        shape = (config.d_model, config.num_experts)
        self.kernel = layers.weight(rngs, shape, std=config.d_model**-0.5, dtype=config.dtype)
        if config.router == "sigmoid":
            # float32 whatever the rest is: differences of 1e-3 in it decide.
            self.bias = nnx.Param(jnp.zeros((config.num_experts,), jnp.float32))

    def __call__(
        self, x: jax.Array, expert_ids: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """See `route`."""
        bias = self.bias[...] if self.config.router == "sigmoid" else None
        return route(self.config, x, self.kernel[...], bias, expert_ids)

    def disagrees(self, x: jax.Array, expert_ids: jax.Array) -> jax.Array:
        """[T] bool: the router itself would take other experts; False where an id is negative."""
        own = self(x)[1]  # XLA computes the logits once for this and for the replay
        same = (own[:, :, None] == expert_ids[:, None, :]).any(axis=1).all(axis=1)
        return ~same & (expert_ids >= 0).all(axis=1)


class Experts(nnx.Module):
    """E gated MLPs, applied to the tokens that the router gave them."""

    def __init__(self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs) -> None:
        e, d, f = config.num_experts, config.d_model, config.d_ff
        self.gate = layers.weight(rngs, (e, d, f), std=d**-0.5, dtype=config.dtype)
        self.up = layers.weight(rngs, (e, d, f), std=d**-0.5, dtype=config.dtype)
        out_std = layers.output_std(f, config)
        self.down = layers.weight(rngs, (e, f, d), std=out_std, dtype=config.dtype)

    def __call__(
        self, x: jax.Array, mixing: jax.Array, chosen: jax.Array, *, form: str
    ) -> jax.Array:
        """x [T, D] with the router's answer -> [T, D]; `form` is one of config.MOE_FORMS."""
        kernels = expert_forms.Kernels(self.gate[...], self.up[...], self.down[...])
        return expert_forms.FORMS[form](x, mixing, chosen, kernels)


def route(
    config: config_lib.ModelConfig,
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    expert_ids: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The experts of each token and their weights, float32.

    A "softmax" router takes the experts with the largest logits, and its weights are the softmax
    over all experts. A "sigmoid" router takes those with the largest sigmoid(logit) + bias, and its
    weights are the sigmoids without the bias, which has no gradient: it balances the load from
    outside (DeepSeek-V3, arXiv:2412.19437). Then the config normalises and scales.

    Which experts are chosen may be given instead, as a sampler chose them on other hardware or with
    other rounding; their weights are still this router's, and so is the gradient (Rollout Routing
    Replay, arXiv:2510.11370).

    Args:
      x: [T, D].
      kernel: [D, E].
      bias: [E] of a "sigmoid" router, None of others.
      expert_ids: [T, k] int, different ids in a row; a row with a negative id chooses itself.

    Returns:
      The mixing weights [T, E] float32 and the chosen experts [T, k] int32.
    """
    logits = x.astype(jnp.float32) @ kernel.astype(jnp.float32)
    scores = logits if bias is None else jax.nn.sigmoid(logits) + bias[None]
    chosen = jax.lax.top_k(jax.lax.stop_gradient(scores), config.experts_per_token)[1]
    if expert_ids is not None:
        given = (expert_ids >= 0).all(axis=-1, keepdims=True)
        chosen = jnp.where(given, expert_ids.astype(chosen.dtype), chosen)
    # A comparison instead of a gather: the gradient of a gather is a scatter.
    every = jnp.arange(logits.shape[-1])[None, None, :]
    kept = (chosen[:, :, None] == every).any(axis=1)
    weights = _weights(config, logits, kept)
    return (weights if config.expert_scale == 1 else weights * config.expert_scale), chosen


def _weights(config: config_lib.ModelConfig, logits: jax.Array, kept: jax.Array) -> jax.Array:
    """[T, E]: of the experts that are `kept` [T, E], 0 of the others; not scaled yet."""
    if config.router == "softmax" and config.normalize_experts:
        # The softmax over the chosen ones is the same function.
        return jax.nn.softmax(jnp.where(kept, logits, -jnp.inf), axis=-1)
    score = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid}[config.router]
    weights = jnp.where(kept, score(logits), 0)
    if config.normalize_experts:
        # Sigmoids of very low logits are 0.
        weights = weights / jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-20)
    return weights
