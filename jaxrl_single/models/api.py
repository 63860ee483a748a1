"""The functional boundary: models as pure functions over plain nested dicts of arrays.

Nothing above this file sees a module. Parameters are nested dicts whose paths read like
`layers/attention/q_proj`; leaves under `layers` carry a leading axis of the L layers:

  embedding/table [V, D]          final_norm/scale [D]          unembedding/table [V, D] (untied)
  layers/attention_norm/scale     layers/attention/{q,k,v,o}_proj, {q,k}_norm/scale
  layers/mlp_norm/scale           layers/mlp/{gate,up,down}
                                  or layers/router/kernel, layers/experts/{gate,up,down}
  value_head/{kernel,bias} (critic only)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import critic as critic_lib
from jaxrl_single.models import kv_cache, transformer

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Policy:
    """A language model as pure functions; jit, differentiate and shard them as you like.

    Attributes:
      config: its shape.
      init: key -> params.
      hidden: (params, tokens, positions, segment_ids), each [B, T] int32 -> [B, T, D].
        The hidden state at t, after the final norm, has read tokens up to and including t.
        Attention is causal and stays within equal `segment_ids`; 0 is padding, where tokens and
        positions may be anything and the output is finite but meaningless. `positions` count
        from 0 in each segment.
      unembedding: params -> [V, D]; logits are hidden @ unembedding.T.
      init_cache: (num_slots S, cache_length C) -> an empty cache.
      prefill: (params, cache, slots [R], tokens [R, P], starts [R], lengths [R]) -> cache.
        Writes keys and values of tokens[r, :lengths[r]] at positions starts[r] .. of slot
        slots[r], attending to what that slot holds before starts[r]. Rows of length 0 change
        nothing, whatever else they hold; rows with tokens name different slots and stay within
        the cache: starts + lengths <= C. P <= C.
      decode: (params, cache, tokens [S], positions [S], active [S] bool) -> (logits [S, V], cache).
        Float32 logits of the token after each slot's token. Writes at `positions`, attends to
        0 .. positions. Inactive slots keep their cache and get meaningless logits. A slot's
        numbers do not depend on the other slots, bitwise.
    """

    config: config_lib.ModelConfig
    init: Callable[[jax.Array], Params]
    hidden: Callable[[Params, jax.Array, jax.Array, jax.Array], jax.Array]
    unembedding: Callable[[Params], jax.Array]
    init_cache: Callable[[int, int], kv_cache.Cache]
    prefill: Callable[..., kv_cache.Cache]
    decode: Callable[..., tuple[jax.Array, kv_cache.Cache]]


@dataclasses.dataclass(frozen=True)
class Critic:
    """A value function as pure functions.

    Attributes:
      config: its shape.
      init: key -> params; the value head is zero, so every value is 0.
      values: (params, tokens, positions, segment_ids), each [B, T] -> [B, T] float32, the value
        of the prefix that ends with token t. Segments and padding as in `Policy.hidden`.
      from_policy: (policy params, key) -> params with a copy of the policy's decoder (a copy, so
        that both may be donated) and a fresh value head.
    """

    config: config_lib.ModelConfig
    init: Callable[[jax.Array], Params]
    values: Callable[[Params, jax.Array, jax.Array, jax.Array], jax.Array]
    from_policy: Callable[[Params, jax.Array], Params]


def build_policy(config: config_lib.ModelConfig) -> Policy:
    """The policy of this shape."""

    def make(rngs: nnx.Rngs) -> transformer.Transformer:
        return transformer.Transformer(config, rngs=rngs, unembedding=True)

    init, model = _functional(make)

    return Policy(
        config=config,
        init=init,
        hidden=lambda params, *rows: model(params).hidden(*rows),
        unembedding=lambda params: model(params).table(),
        init_cache=lambda num_slots, cache_length: kv_cache.init(
            config, num_slots=num_slots, cache_length=cache_length
        ),
        prefill=lambda params, cache, *rows: model(params).prefill(cache, *rows),
        decode=lambda params, cache, *slots: model(params).decode(cache, *slots),
    )


def build_critic(config: config_lib.ModelConfig) -> Critic:
    """The critic of this shape."""
    init, model = _functional(lambda rngs: critic_lib.Critic(config, rngs=rngs))

    def from_policy(policy_params: Params, key: jax.Array) -> Params:
        head = critic_lib.ValueHead(config, rngs=nnx.Rngs(key))
        decoder = {name: policy_params[name] for name in policy_params if name != "unembedding"}
        return {
            **jax.tree.map(jnp.copy, decoder),
            "value_head": nnx.to_pure_dict(nnx.state(head, graph=False)),
        }

    return Critic(
        config=config,
        init=init,
        values=lambda params, *rows: model(params).values(*rows),
        from_policy=from_policy,
    )


def _functional(make: Callable[[nnx.Rngs], Any]) -> tuple[Callable, Callable]:
    """(init: key -> params, model: params -> module) of a module's constructor."""
    abstract = nnx.eval_shape(lambda: make(nnx.Rngs(0)), graph=False)
    graph, _ = nnx.split(abstract, graph=False)

    @jax.jit
    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), graph=False))

    def model(params: Params) -> Any:
        return nnx.merge(graph, params)

    return init, model
