"""The decoder once more, for comparison: float64 numpy, one token and one head at a time."""

import numpy as np


def hidden(params: dict, config, tokens: np.ndarray) -> np.ndarray:
    """tokens [T] of one segment -> [T, D] after the final norm."""
    params = _as_float64(params)
    x = params["embedding"]["table"][tokens]
    for i in range(config.num_layers):
        layer = _slice(params["layers"], i)
        normed = _rms_norm(x, layer["attention_norm"]["scale"], config.norm_eps)
        x = x + _attention(normed, layer["attention"], config)
        normed = _rms_norm(x, layer["mlp_norm"]["scale"], config.norm_eps)
        if config.num_experts:
            x = x + np.stack([_mixture(token, layer, config) for token in normed])
        else:
            x = x + _gated(normed, layer["mlp"])
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


def router_weights(x: np.ndarray, kernel: np.ndarray, experts_per_token: int) -> np.ndarray:
    """x [D] -> [E]: softmax, the largest kept, renormalised."""
    logits = x @ kernel
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    weights[np.argsort(-weights)[experts_per_token:]] = 0
    return weights / weights.sum()


def _mixture(x: np.ndarray, layer: dict, config) -> np.ndarray:
    weights = router_weights(x, layer["router"]["kernel"], config.experts_per_token)
    return mixture(x[None], weights[None], **layer["experts"])[0]


def _attention(x: np.ndarray, weights: dict, config) -> np.ndarray:
    size = config.head_size
    mixed = np.zeros((len(x), config.num_heads, size))
    for head in range(config.num_heads):
        kv_head = head // (config.num_heads // config.num_kv_heads)
        q = x @ weights["q_proj"][:, head * size : (head + 1) * size]
        k = x @ weights["k_proj"][:, kv_head * size : (kv_head + 1) * size]
        v = x @ weights["v_proj"][:, kv_head * size : (kv_head + 1) * size]
        q = _rotate(_rms_norm(q, weights["q_norm"]["scale"], config.norm_eps), config.rope_theta)
        k = _rotate(_rms_norm(k, weights["k_norm"]["scale"], config.norm_eps), config.rope_theta)
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
