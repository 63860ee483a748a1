"""The decoder as the sampler runs it: prefill of pages and decode steps over a paged cache.

The parameters are first brought into another form, once per version of the weights: a dict per
layer instead of stacked arrays (slicing those inside a loop copies them at each step), the
projections that read the same input joined into one, and kernels transposed:

  embedding [V, D]   unembedding [V, D]   final_norm [D]   layers, a list of L dicts:
    attention_norm [D]   qkv [(N + 2 K) H, D]   qkv_bias [(N + 2 K) H] if the model has biases
    qk_scale [N + K, H] f32, the scales of q/k norms, or [N + K, 1]; H ** -0.5 in the part of q
    output [D, N H]      mlp_norm [D]
    gate_up [2 F, D] and down [D, F]
    or router [D, E], router_bias [E], gate_up [E, 2 F, D] and down [E, D, F], with shared experts
    shared_gate_up [2 S, D] and shared_down [D, S]

Activations are [D, T], features before the T tokens of a dispatch. In kernel @ activations XLA:CPU
reads the kernel as it lies and rearranges the few activations; the other way round it rearranges
the kernel at every step. And norms and rotations become vector loops over tokens.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import (
    kv_cache,
    matmul,
    moe,
    paged_attention,
    platform,
    rope,
    serving_experts,
)

Serving = dict[str, Any]
Layer = dict[str, jax.Array]

NO_EXPERT = -1  # expert ids where no token was read


def form(config: config_lib.ModelConfig, params: dict[str, Any]) -> Serving:
    """The parameters as `prefill` and `decode` read them."""
    table = params["embedding"]["table"]
    unembedding = table if config.tie_embeddings else params["unembedding"]["table"]
    return {
        "embedding": table,
        "unembedding": unembedding,
        "final_norm": params["final_norm"]["scale"],
        "layers": [
            _layer_form(config, jax.tree.map(lambda leaf, i=i: leaf[i], params[stack]))
            for stack, num_layers in _stacks(config).items()
            for i in range(num_layers)
        ],
    }


def _stacks(config: config_lib.ModelConfig) -> dict[str, int]:
    """Names of the stacks of layers in the parameters, and how many layers they hold."""
    last = config.num_layers - config.num_dense_layers
    return {"dense_layers": config.num_dense_layers, "layers": last}


def _layer_form(config: config_lib.ModelConfig, layer: dict[str, Any]) -> Layer:
    attention = layer["attention"]
    made = {
        "attention_norm": layer["attention_norm"]["scale"],
        "qkv": _joined(attention["q_proj"], attention["k_proj"], attention["v_proj"]),
        "qk_scale": _head_scales(config, attention),
        "output": attention["o_proj"].T,
        "mlp_norm": layer["mlp_norm"]["scale"],
    }
    if config.attention_bias:
        made["qkv_bias"] = jnp.concatenate([attention[f"{name}_bias"] for name in "qkv"])
    if "mlp" in layer:
        return made | _mlp_form(layer["mlp"])
    router = layer["router"]
    if "bias" in router:
        made["router_bias"] = router["bias"]
    if config.num_shared_experts:
        shared = _mlp_form(layer["shared_experts"])
        made |= {f"shared_{name}": kernel for name, kernel in shared.items()}
    experts = layer["experts"]
    gate_up = jnp.concatenate([experts["gate"], experts["up"]], axis=2)
    return made | {
        "router": router["kernel"],
        "gate_up": gate_up.transpose(0, 2, 1),
        "down": experts["down"].transpose(0, 2, 1),
    }


def _mlp_form(mlp: dict[str, jax.Array]) -> Layer:
    return {"gate_up": _joined(mlp["gate"], mlp["up"]), "down": mlp["down"].T}


def _head_scales(config: config_lib.ModelConfig, attention: dict[str, Any]) -> jax.Array:
    """What query and key heads are multiplied by, queries first: [N + K, H], or [N + K, 1]."""
    if config.qk_norm:
        q, k = (attention[name]["scale"].astype(jnp.float32) for name in ("q_norm", "k_norm"))
    else:
        q, k = jnp.ones((1,)), jnp.ones((1,))
    return jnp.stack([q * config.head_size**-0.5] * config.num_heads + [k] * config.num_kv_heads)


def _joined(*kernels: jax.Array) -> jax.Array:
    """Kernels [D, F_i] as one [F_1 + F_2 ..., D]."""
    return jnp.concatenate([kernel.T for kernel in kernels])


def prefill(
    config: config_lib.ModelConfig, serving: Serving, cache: kv_cache.Cache, *rows: jax.Array
) -> tuple[kv_cache.Cache, jax.Array]:
    """`read` for the cache alone; see `api.Policy.prefill`."""
    _, cache, expert_ids = read(config, serving, cache, *rows)
    return cache, expert_ids


def read(
    config: config_lib.ModelConfig,
    serving: Serving,
    cache: kv_cache.Cache,
    tokens: jax.Array,
    page_index: jax.Array,
    first: jax.Array,
    last: jax.Array,
    table: jax.Array,
) -> tuple[jax.Array, kv_cache.Cache, jax.Array]:
    """Reads pages of known tokens [R, B] into the cache; see `api.Policy.read`."""
    num_pages, _, page_size, _ = cache[0][1].shape
    columns = jnp.arange(page_size)
    real = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
    page_index = jnp.where(first < last, page_index, 0)
    table = jnp.clip(table, 0, num_pages - 1)
    own = jnp.take_along_axis(table, page_index[:, None], axis=1, mode="clip")[:, 0]
    num_turns = page_index.max() + 1
    turn = _rotation(config, (page_index[:, None] * page_size + columns[None, :]).reshape(-1))
    x = _embed(serving, jnp.where(real, tokens, 0).reshape(-1))
    new_cache, expert_ids = [], []
    for layer, part in zip(serving["layers"], cache, strict=True):
        q, k, v = (
            rows.reshape(*real.shape, -1, config.head_size)
            for rows in _project(config, layer, x, turn)
        )
        part = kv_cache.write_pages(part, k, v, own, real)
        mixed = paged_attention.prefill(_fold(config, q), part, page_index, table, num_turns)
        x = x + _output(layer, _unfold(config, mixed))
        x, chosen = _feed_forward(config, layer, x, real.reshape(-1))
        new_cache.append(part)
        if chosen is not None:
            chosen = chosen.reshape(*real.shape, -1)
            expert_ids.append(jnp.where(real[..., None], chosen, NO_EXPERT))
    hidden = _norm(x, serving["final_norm"], config.norm_eps).T.reshape(*real.shape, -1)
    return hidden, new_cache, _stacked(expert_ids, real.shape)


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
    page_index, columns = jnp.divmod(positions, page_size)
    own = jnp.take_along_axis(table, page_index[:, None], axis=1, mode="clip")[:, 0]
    num_turns = page_index.max() + 1
    turn = _rotation(config, positions)
    x = _embed(serving, jnp.where(active, tokens, 0))
    new_cache, expert_ids = [], []
    for layer, part in zip(serving["layers"], cache, strict=True):
        q, k, v = _project(config, layer, x, turn)
        part = kv_cache.write_tokens(part, k, v, own, columns, active)
        q = q.reshape(q.shape[0], config.num_kv_heads, config.queries_per_kv, config.head_size)
        mixed = paged_attention.decode(q, part, positions, table, owner, index, num_turns)
        x = x + _output(layer, mixed.reshape(mixed.shape[0], -1))
        x, chosen = _feed_forward(config, layer, x, active)
        new_cache.append(part)
        if chosen is not None:
            expert_ids.append(jnp.where(active[:, None], chosen, NO_EXPERT))
    normed = platform.separate(_norm(x, serving["final_norm"], config.norm_eps).T)
    logits = jnp.einsum(
        "sd,vd->sv", normed, serving["unembedding"], preferred_element_type=jnp.float32
    )
    return platform.separate(logits), new_cache, _stacked(expert_ids, active.shape)


def _stacked(expert_ids: list[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Those of each layer with experts, [*shape, k], as one [*shape, L, k]."""
    return jnp.stack(expert_ids, axis=-2) if expert_ids else jnp.zeros((*shape, 0, 0), jnp.int32)


def _embed(serving: Serving, tokens: jax.Array) -> jax.Array:
    """[T] -> [D, T]."""
    return jnp.take(serving["embedding"], tokens, axis=0, mode="clip").T


def _rotation(config: config_lib.ModelConfig, positions: jax.Array) -> rope.Rotation:
    """Cosines and sines [R / 2, T] of positions [T]."""
    cos, sin = rope.rotation(config, positions)
    # Once, not again in every layer for every head.
    return platform.separate((cos.T, sin.T))


def _project(
    config: config_lib.ModelConfig, layer: Layer, x: jax.Array, turn: rope.Rotation
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x [D, T] -> q [T, N, H] (scaled by H ** -0.5), k and v [T, K, H]."""
    normed = platform.separate(_norm(x, layer["attention_norm"], config.norm_eps))
    joined = platform.separate(layer["qkv"] @ normed)
    if config.attention_bias:
        joined = joined + layer["qkv_bias"][:, None]
    joined = joined.reshape(-1, config.head_size, x.shape[1])
    q_and_k, v = jnp.split(joined, [config.num_heads + config.num_kv_heads])
    q_and_k = q_and_k.astype(jnp.float32)
    if config.qk_norm:
        q_and_k = _norm(q_and_k, layer["qk_scale"], config.norm_eps)
    else:
        q_and_k = q_and_k * layer["qk_scale"][..., None]
    turned = rope.turn(q_and_k, *(part[None] for part in turn), axis=1)
    rows = platform.separate((turned.astype(x.dtype).transpose(2, 0, 1), v.transpose(2, 0, 1)))
    return *jnp.split(rows[0], [config.num_heads], axis=1), rows[1]


def _output(layer: Layer, mixed: jax.Array) -> jax.Array:
    """mixed [T, N H] -> [D, T]."""
    return jnp.einsum("df,tf->dt", layer["output"], platform.separate(mixed))


def _feed_forward(
    config: config_lib.ModelConfig, layer: Layer, x: jax.Array, real: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    """x [D, T] -> x with the MLP or the experts added, and the chosen experts [T, k] if there are.

    Tokens that are not `real` [T] get numbers without meaning.
    """
    normed = platform.separate(_norm(x, layer["mlp_norm"], config.norm_eps))
    if "router" not in layer:
        return x + _mlp(normed, layer["gate_up"], layer["down"]), None
    # The dot of a transposed array would round the last tokens differently from the others.
    rows = platform.separate(normed.T)
    mixing, chosen = moe.route(config, rows, layer["router"], layer.get("router_bias"))
    kernels = layer["gate_up"], layer["down"]
    x = x + serving_experts.apply(normed, real, mixing, chosen, *kernels)
    if config.num_shared_experts:
        x = x + _mlp(normed, layer["shared_gate_up"], layer["shared_down"])
    return x, chosen


def _mlp(x: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    """x [D, T] -> [D, T]."""
    gate, up = jnp.split(platform.separate(gate_up @ x), 2)
    return down @ platform.separate(matmul.swiglu(gate, up))


def _norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x [..., D, T] over its root mean square along D, in float32, times scale [..., D]."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-2, keepdims=True) + eps)
    return (wide * inverse).astype(x.dtype) * scale[..., None]


def _fold(config: config_lib.ModelConfig, q: jax.Array) -> jax.Array:
    """[R, B, N, H] -> [R, K, B G, H]."""
    r, b, _, h = q.shape
    q = q.reshape(r, b, config.num_kv_heads, -1, h).transpose(0, 2, 1, 3, 4)
    return q.reshape(r, config.num_kv_heads, -1, h)


def _unfold(config: config_lib.ModelConfig, mixed: jax.Array) -> jax.Array:
    """[R, K, B G, H] -> [R B, N H]."""
    r, k, _, h = mixed.shape
    mixed = mixed.reshape(r, k, -1, config.queries_per_kv, h).transpose(0, 2, 1, 3, 4)
    return mixed.reshape(-1, config.num_heads * h)
