"""Mixture of experts: a softmax router and SwiGLU experts; no token is ever dropped."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import expert_forms, layers


class Router(nnx.Module):
    """The router's kernel [D, E]; see `route`."""

    def __init__(self, config: config_lib.ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.experts_per_token = config.experts_per_token
        shape = (config.d_model, config.num_experts)
        self.kernel = layers.weight(rngs, shape, std=config.d_model**-0.5, dtype=config.dtype)

    def __call__(
        self, x: jax.Array, expert_ids: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """See `route`."""
        return route(x, self.kernel[...], self.experts_per_token, expert_ids)


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
    x: jax.Array,
    kernel: jax.Array,
    experts_per_token: int,
    expert_ids: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the experts, the largest `experts_per_token` kept and renormalised, float32.

    Computed as the softmax over the chosen experts, which is the same function. Which experts are
    chosen may be given instead, as a sampler chose them on other hardware or with other rounding;
    their weights are still this router's, and so is the gradient (Rollout Routing Replay,
    arXiv:2510.11370).

    Args:
      x: [T, D].
      kernel: [D, E].
      expert_ids: [T, k] int, different ids in a row; a row with a negative id chooses itself.

    Returns:
      The mixing weights [T, E] float32 and the chosen experts [T, k] int32.
    """
    logits = x.astype(jnp.float32) @ kernel.astype(jnp.float32)
    chosen = jax.lax.top_k(jax.lax.stop_gradient(logits), experts_per_token)[1]
    if expert_ids is not None:
        given = (expert_ids >= 0).all(axis=-1, keepdims=True)
        chosen = jnp.where(given, expert_ids.astype(chosen.dtype), chosen)
    # A comparison instead of a gather: the gradient of a gather is a scatter.
    every = jnp.arange(logits.shape[-1])[None, None, :]
    kept = (chosen[:, :, None] == every).any(axis=1)
    return jax.nn.softmax(jnp.where(kept, logits, -jnp.inf), axis=-1), chosen
