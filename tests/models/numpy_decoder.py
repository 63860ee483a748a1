"""The decoder once more, for comparison: float64 numpy, one token and one head at a time."""

import numpy as np


def hidden(params: dict, config, tokens: np.ndarray) -> np.ndarray:
    """tokens [T] of one segment -> [T, D] after the final norm."""
    params = _as_float64(params)
    x = params["embedding"]["table"][tokens]
    stacks = {"dense_layers": config.num_dense_layers}
    stacks["layers"] = config.num_layers - config.num_dense_layers
    for layer in (_slice(params[name], i) for name, n in stacks.items() for i in range(n)):
        normed = _rms_norm(x, layer["attention_norm"]["scale"], config.norm_eps)
        x = x + _attention(normed, layer["attention"], config)
        normed = _rms_norm(x, layer["mlp_norm"]["scale"], config.norm_eps)
        if "mlp" in layer:
            x = x + _gated(normed, layer["mlp"])
            continue
        x = x + np.stack([_mixture(token, layer, config) for token in normed])
        if config.num_shared_experts:
            x = x + _gated(normed, layer["shared_experts"])
    return _rms_norm(x, params["final_norm"]["scale"], config.norm_eps)


def mixture(
    x: np.ndarray, mixing: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray
) -> np.ndarray:
    """x [T, D] through E experts, weighted by mixing [T, E]."""
    outputs = np.zeros(x.shape)
    for t in range(len(x)):
        for e in np.flatnonzero(mixing[t]):
            expert = {"gate": gate[e], "up": up[e], "down": down[e]}
            outputs[t] += mixing[t, e] * _gated(x[t], expert)
    return outputs


def router_weights(x: np.ndarray, router: dict, config) -> np.ndarray:
    """x [D] -> [E]: of the experts that are kept."""
    logits = x @ router["kernel"]
    if config.router == "sigmoid":
        weights = 1 / (1 + np.exp(-logits))
        scores = weights + router["bias"]
    else:
        weights = np.exp(logits - logits.max())
        scores = weights = weights / weights.sum()
    dropped = np.argsort(-scores)[config.experts_per_token :]
    weights[dropped] = 0
    if config.normalize_experts:
        weights = weights / weights.sum()
    return weights * config.expert_scale


def _mixture(x: np.ndarray, layer: dict, config) -> np.ndarray:
    weights = router_weights(x, layer["router"], config)
    return mixture(x[None], weights[None], **layer["experts"])[0]


def _attention(x: np.ndarray, weights: dict, config) -> np.ndarray:
    size = config.head_size
    mixed = np.zeros((len(x), config.num_heads, size))
    for head in range(config.num_heads):
        kv_head = head // (config.num_heads // config.num_kv_heads)
        q, k, v = (
            x @ weights[f"{part}_proj"][:, at * size : (at + 1) * size]
            for part, at in (("q", head), ("k", kv_head), ("v", kv_head))
        )
        if config.attention_bias:
            q = q + weights["q_bias"][head * size : (head + 1) * size]
            k, v = (
                rows + weights[f"{part}_bias"][kv_head * size : (kv_head + 1) * size]
                for part, rows in (("k", k), ("v", v))
            )
        if config.qk_norm:
            q = _rms_norm(q, weights["q_norm"]["scale"], config.norm_eps)
            k = _rms_norm(k, weights["k_norm"]["scale"], config.norm_eps)
        turning = int(size * config.rotary_fraction)
        q, k = (
            np.concatenate([_rotate(part[:, :turning], config.rope_theta), part[:, turning:]], 1)
            for part in (q, k)
        )
        for t in range(len(x)):
            scores = k[: t + 1] @ q[t] / np.sqrt(size)
            chances = np.exp(scores - scores.max())
            mixed[t, head] = chances @ v[: t + 1] / chances.sum()
    return mixed.reshape(len(x), -1) @ weights["o_proj"]


def _rotate(x: np.ndarray, theta: float) -> np.ndarray:
    half = x.shape[1] // 2
    turned = np.zeros_like(x)
    for position in range(len(x)):
        for i in range(half):
            angle = position * theta ** (-i / half)
            first, second = x[position, i], x[position, i + half]
            turned[position, i] = first * np.cos(angle) - second * np.sin(angle)
            turned[position, i + half] = first * np.sin(angle) + second * np.cos(angle)
    return turned


def _gated(x: np.ndarray, weights: dict) -> np.ndarray:
    gate = x @ weights["gate"]
    return (gate / (1 + np.exp(-gate)) * (x @ weights["up"])) @ weights["down"]


def _rms_norm(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * scale


def _slice(tree: dict, layer: int) -> dict:
    return {
        name: _slice(value, layer) if isinstance(value, dict) else value[layer]
        for name, value in tree.items()
    }


def _as_float64(tree: dict) -> dict:
    return {
        name: _as_float64(value) if isinstance(value, dict) else np.asarray(value, np.float64)
        for name, value in tree.items()
    }
