"""The functional boundary: models as pure functions over plain nested dicts of arrays.

Nothing above this file sees a module. Parameters are nested dicts whose paths read like
`layers/attention/q_proj`; leaves under `layers` carry a leading axis of the L layers, or of the
last ones, with experts, where `dense_layers` are those before:

  embedding/table [V, D]          final_norm/scale [D]          unembedding/table [V, D] (untied)
  layers/attention_norm/scale     layers/attention/{q,k,v,o}_proj, {q,k,v}_bias, {q,k}_norm/scale
  layers/mlp_norm/scale           layers/mlp/{gate,up,down}
                                  or layers/router/{kernel,bias}, layers/experts/{gate,up,down},
                                  layers/shared_experts/{gate,up,down}
  value_head/{kernel,bias} (critic only)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import critic as critic_lib
from jaxrl_single.models import kv_cache, transformer
from jaxrl_single.models import serving as serving_lib

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Policy:
    """A language model as pure functions; jit, differentiate and shard them as you like.

    Attributes:
      config: its shape.
      init: key -> params.
      hidden: (params, tokens, positions, segment_ids[, expert_ids]), each [B, T] int32 ->
        [B, T, D]. The hidden state at t, after the final norm, has read tokens up to and including
        t. Attention is causal and stays within equal `segment_ids`; 0 is padding, where tokens and
        positions may be anything and the output is finite but meaningless. `positions` count
        from 0 in each segment. `expert_ids` int [B, T, L, k] replays the experts that each token
        took in each of the L layers that have some; the weights of the experts are the router's
        own, and so is its gradient. -1: the router chooses for this token itself.
      replay: as `hidden` with expert_ids, -> (hidden, rerouted [B, T, L] bool): where the router
        itself would have taken other experts, False where an id is -1.
      unembedding: params -> [V, D]; logits are hidden @ unembedding.T.
      serving: params -> serving, the form of the parameters that `prefill` and `decode` read; a
        copy, made once per version of the weights (see models/serving.py).
      init_cache: (num_pages P, page_size B) -> an empty cache.
      resize_cache: (cache, num_pages) -> cache with so many pages: the first ones, zeros behind.
      copy_pages: (cache, sources [n], targets [n]) -> cache; see models/kv_cache.py.
      prefill: (serving, cache, tokens [R, B], page_index [R], first [R], last [R], table [R, M]) ->
        (cache, expert_ids [R, B, L, k] int32). A row reads tokens of one page of one sequence:
        columns first .. last - 1 at positions page_index * B + column, into page
        table[r, page_index[r]]. It attends to what pages table[r, :page_index[r] + 1] hold before
        them, tokens of other rows of the same call among them: several pages of one sequence may go
        together. Rows with first == last change nothing, whatever else they hold; the others name
        different pages. The numbers of a token depend, bitwise, on its sequence up to
        itself and on R alone.
      read: as `prefill`, -> (hidden [R, B, D], cache, expert_ids); the hidden states are those of
        `hidden`, and without meaning in columns that are not read.
      decode: (serving, cache, tokens [S], positions [S], active [S] bool, table [S, M], owner [P],
        index [P]) -> (logits [S, V], cache, expert_ids [S, L, k] int32). Float32 logits of the
        token after each slot's token. Writes at `positions`, attends to 0 .. positions. table[s]
        names the pages of slot s in order; page p is the page number index[p] of slot owner[p].
        Pages of nobody have owner 0 and index M. Inactive slots keep their pages and get
        meaningless logits. A slot's numbers depend, bitwise, neither on the other slots nor on P
        nor on where its pages lie.

    The expert ids are -1 where no token was read; L counts the layers that have experts, and L and
    k are 0 in dense models.
    """

    config: config_lib.ModelConfig
    init: Callable[[jax.Array], Params]
    hidden: Callable[..., jax.Array]
    replay: Callable[..., tuple[jax.Array, jax.Array]]
    unembedding: Callable[[Params], jax.Array]
    serving: Callable[[Params], serving_lib.Serving]
    init_cache: Callable[[int, int], kv_cache.Cache]
    resize_cache: Callable[[kv_cache.Cache, int], kv_cache.Cache]
    copy_pages: Callable[[kv_cache.Cache, jax.Array, jax.Array], kv_cache.Cache]
    prefill: Callable[..., tuple[kv_cache.Cache, jax.Array]]
    read: Callable[..., tuple[jax.Array, kv_cache.Cache, jax.Array]]
    decode: Callable[..., tuple[jax.Array, kv_cache.Cache, jax.Array]]


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
        replay=lambda params, *rows: model(params).replay(*rows),
        unembedding=lambda params: model(params).table(),
        serving=jax.jit(functools.partial(serving_lib.form, config)),
        init_cache=lambda num_pages, page_size: kv_cache.init(
            config, num_pages=num_pages, page_size=page_size
        ),
        resize_cache=kv_cache.resize,
        copy_pages=kv_cache.copy_pages,
        prefill=functools.partial(serving_lib.prefill, config),
        read=functools.partial(serving_lib.read, config),
        decode=functools.partial(serving_lib.decode, config),
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
