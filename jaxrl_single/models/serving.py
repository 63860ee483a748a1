"""The decoder as the sampler runs it: prefill of pages and decode steps over a paged cache.

The parameters are first brought into another form, once per version of the weights: a dict per
layer instead of stacked arrays (slicing those inside a loop copies them at each step), with the
projections that read the same input joined into one.

  embedding [V, D]   unembedding [V, D]   final_norm [D]   layers, a list of L dicts:
    attention_norm [D]   qkv [D, (N + 2 K) H]   qk_norm [N + K, H] f32, H ** -0.5 in the part of q
    output [N H, D]      mlp_norm [D]
    gate_up [D, 2 F] and down [F, D]
    or router [D, E], gate_up [D, 2 E F] and down [E F, D]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import kv_cache, layers, matmul, moe, paged_attention

Serving = dict[str, Any]

NO_EXPERT = -1  # expert ids where no token was read


class _Places(NamedTuple):
    """Where the tokens of a dispatch stand; the leading axes are [S] in decode, [R, B] in prefill.

    Attributes:
      real: [...] bool, tokens that are read.
      turn: rotations of their positions.
    """

    real: jax.Array
    turn: layers.Rotation


def form(config: config_lib.ModelConfig, params: dict[str, Any]) -> Serving:
    """The parameters as `prefill` and `decode` read them."""
    table = params["embedding"]["table"]
    unembedding = table if config.tie_embeddings else params["unembedding"]["table"]
    stacked = params["layers"]
    return {
        "embedding": table,
        "unembedding": unembedding,
        "final_norm": params["final_norm"]["scale"],
        "layers": [
            _layer_form(config, jax.tree.map(lambda leaf, i=i: leaf[i], stacked))
            for i in range(config.num_layers)
        ],
    }


def _layer_form(config: config_lib.ModelConfig, layer: dict[str, Any]) -> dict[str, jax.Array]:
    attention = layer["attention"]
    q_norm = attention["q_norm"]["scale"].astype(jnp.float32) * config.head_size**-0.5
    k_norm = attention["k_norm"]["scale"].astype(jnp.float32)
    made = {
        "attention_norm": layer["attention_norm"]["scale"],
        "qkv": jnp.concatenate([attention[name] for name in ("q_proj", "k_proj", "v_proj")], 1),
        "qk_norm": jnp.concatenate(
            [
                jnp.tile(q_norm[None], (config.num_heads, 1)),
                jnp.tile(k_norm[None], (config.num_kv_heads, 1)),
            ]
        ),
        "output": attention["o_proj"],
        "mlp_norm": layer["mlp_norm"]["scale"],
    }
    if not config.num_experts:
        gate_up = jnp.concatenate([layer["mlp"]["gate"], layer["mlp"]["up"]], axis=1)
        return made | {"gate_up": gate_up, "down": layer["mlp"]["down"]}
    experts = layer["experts"]
    gate, up = (
        experts[name].transpose(1, 0, 2).reshape(config.d_model, -1) for name in ("gate", "up")
    )
    return made | {
        "router": layer["router"]["kernel"],
        "gate_up": jnp.concatenate([gate, up], axis=1),
        "down": experts["down"].reshape(-1, config.d_model),
    }


def prefill(
    config: config_lib.ModelConfig,
    serving: Serving,
    cache: kv_cache.Cache,
    tokens: jax.Array,
    page_index: jax.Array,
    first: jax.Array,
    last: jax.Array,
    table: jax.Array,
) -> tuple[kv_cache.Cache, jax.Array]:
    """Reads pages of known tokens [R, B] into the cache; see `api.Policy.prefill`."""
    num_pages, _, page_size, _ = cache[0][1].shape
    columns = jnp.arange(page_size)
    real = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
    page_index = jnp.where(first < last, page_index, 0)
    table = jnp.clip(table, 0, num_pages - 1)
    own = jnp.take_along_axis(table, page_index[:, None], axis=1, mode="clip")[:, 0]
    num_turns = page_index.max() + 1
    places = _places(config, real, page_index[:, None] * page_size + columns[None, :])
    x = _embed(serving, jnp.where(real, tokens, 0))
    new_cache, expert_ids = [], []
    for layer, part in zip(serving["layers"], cache, strict=True):
        q, k, v = _project(config, layer, x, places.turn)
        part = kv_cache.write_pages(part, k, v, own, real)
        mixed = paged_attention.prefill(_fold(config, q), part, page_index, table, num_turns)
        x = x + matmul.matmul(_unfold(config, mixed), layer["output"])
        x, chosen = _feed_forward(config, layer, x, real)
        new_cache.append(part)
        expert_ids.append(chosen)
    return new_cache, jnp.stack(expert_ids, axis=-2)


def decode(
    config: config_lib.ModelConfig,
    serving: Serving,
    cache: kv_cache.Cache,
    tokens: jax.Array,
    positions: jax.Array,
    active: jax.Array,
    table: jax.Array,
    owner: jax.Array,
    index: jax.Array,
) -> tuple[jax.Array, kv_cache.Cache, jax.Array]:
    """One token a slot [S] -> logits [S, V], the cache, expert ids; see `api.Policy.decode`."""
    num_pages, _, page_size, _ = cache[0][1].shape
    positions = jnp.where(active, positions, 0)
    table = jnp.clip(table, 0, num_pages - 1)
    turns = positions // page_size
    own = jnp.take_along_axis(table, turns[:, None], axis=1, mode="clip")[:, 0]
    columns, num_turns = positions % page_size, turns.max() + 1
    places = _places(config, active, positions)
    x = _embed(serving, jnp.where(active, tokens, 0))
    new_cache, expert_ids = [], []
    for layer, part in zip(serving["layers"], cache, strict=True):
        q, k, v = _project(config, layer, x, places.turn)
        part = kv_cache.write_tokens(part, k, v, own, columns, active)
        q = q.reshape(q.shape[0], config.num_kv_heads, config.queries_per_kv, config.head_size)
        mixed = paged_attention.decode(q, part, positions, table, owner, index, num_turns)
        x = x + matmul.matmul(mixed.reshape(x.shape[0], -1), layer["output"])
        x, chosen = _feed_forward(config, layer, x, active)
        new_cache.append(part)
        expert_ids.append(chosen)
    normed = layers.rms_norm(x, serving["final_norm"], eps=config.norm_eps)
    logits = jnp.einsum(
        "sd,vd->sv", normed, serving["unembedding"], preferred_element_type=jnp.float32
    )
    return logits, new_cache, jnp.stack(expert_ids, axis=-2)


def _places(config: config_lib.ModelConfig, real: jax.Array, positions: jax.Array) -> _Places:
    turn = layers.rotation(positions, head_size=config.head_size, theta=config.rope_theta)
    return _Places(real, turn)


def _embed(serving: Serving, tokens: jax.Array) -> jax.Array:
    return jnp.take(serving["embedding"], tokens, axis=0, mode="clip")


def _project(
    config: config_lib.ModelConfig, layer: dict[str, jax.Array], x: jax.Array, turn: layers.Rotation
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x [..., D] -> q [..., N, H] (scaled by H ** -0.5), k and v [..., K, H]."""
    normed = layers.rms_norm(x, layer["attention_norm"], eps=config.norm_eps)
    joined = matmul.matmul(normed, layer["qkv"]).reshape(*x.shape[:-1], -1, config.head_size)
    q_and_k, v = jnp.split(joined, [config.num_heads + config.num_kv_heads], axis=-2)
    q_and_k = layers.rms_norm(q_and_k.astype(jnp.float32), layer["qk_norm"], eps=config.norm_eps)
    q_and_k = layers.rotate(q_and_k, turn).astype(x.dtype)
    q, k = jnp.split(q_and_k, [config.num_heads], axis=-2)
    return q, k, v


def _feed_forward(
    config: config_lib.ModelConfig, layer: dict[str, jax.Array], x: jax.Array, real: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """x [..., D] -> x with MLP or experts added, and the experts [..., k] of the real tokens."""
    flat = x.reshape(-1, x.shape[-1])
    normed = layers.rms_norm(flat, layer["mlp_norm"], eps=config.norm_eps)
    gate, up = jnp.split(matmul.matmul(normed, layer["gate_up"]), 2, axis=-1)
    hidden = matmul.swiglu(gate, up)
    if not config.num_experts:
        out = matmul.matmul(hidden, layer["down"])
        return x + out.reshape(x.shape), jnp.zeros((*real.shape, 0), jnp.int32)
    mixing, chosen = moe.route(normed, layer["router"], config.experts_per_token)
    # Every expert on every token: no token is grouped with others, which would let its rounding
    # depend on them.
    hidden = hidden.reshape(*mixing.shape, -1) * mixing[:, :, None].astype(hidden.dtype)
    out = matmul.matmul(hidden.reshape(flat.shape[0], -1), layer["down"])
    chosen = jnp.where(real[..., None], chosen.reshape(*real.shape, -1), NO_EXPERT)
    return x + out.reshape(x.shape), chosen


def _fold(config: config_lib.ModelConfig, q: jax.Array) -> jax.Array:
    """[R, B, N, H] -> [R, K, B G, H]."""
    r, b, _, h = q.shape
    q = q.reshape(r, b, config.num_kv_heads, -1, h).transpose(0, 2, 1, 3, 4)
    return q.reshape(r, config.num_kv_heads, -1, h)


def _unfold(config: config_lib.ModelConfig, mixed: jax.Array) -> jax.Array:
    """[R, K, B G, H] -> [R, B, N H]."""
    r, k, _, h = mixed.shape
    mixed = mixed.reshape(r, k, -1, config.queries_per_kv, h).transpose(0, 2, 1, 3, 4)
    return mixed.reshape(r, mixed.shape[1], -1)
