"""Named sizes: the numbers of published models, and small ones for tests. Data alone."""

from __future__ import annotations

import dataclasses

from jaxrl_single.models import config as config_lib

_TINY = config_lib.ModelConfig(
    vocab_size=64,
    num_layers=2,
    d_model=64,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    d_ff=128,
)
_TINY_LLAMA = dataclasses.replace(_TINY, qk_norm=False, tie_embeddings=True)


def _qwen3(num_layers: int, d_model: int, num_heads: int, d_ff: int) -> config_lib.ModelConfig:
    return config_lib.ModelConfig(
        vocab_size=151_936,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=8,
        head_size=128,
        d_ff=d_ff,
        rope_theta=1e6,
    )


def _tied(shape: config_lib.ModelConfig) -> config_lib.ModelConfig:
    return dataclasses.replace(shape, tie_embeddings=True)


_QWEN3_30B_A3B = dataclasses.replace(
    _qwen3(48, 2048, 32, 768),
    num_kv_heads=4,
    num_experts=128,
    experts_per_token=8,
    moe_form="ragged",
)
_QWEN3_235B_A22B = dataclasses.replace(
    _QWEN3_30B_A3B, num_layers=94, d_model=4096, num_heads=64, d_ff=1536
)
_QWEN2_5_7B = config_lib.ModelConfig(
    vocab_size=152_064,
    num_layers=28,
    d_model=3584,
    num_heads=28,
    num_kv_heads=4,
    head_size=128,
    d_ff=18_944,
    qk_norm=False,
    attention_bias=True,
    rope_theta=1e6,
)
_QWEN2_5_1_5B = dataclasses.replace(
    _QWEN2_5_7B,
    vocab_size=151_936,
    d_model=1536,
    num_heads=12,
    num_kv_heads=2,
    d_ff=8960,
    tie_embeddings=True,
)
_LLAMA3_1_8B = config_lib.ModelConfig(
    vocab_size=128_256,
    num_layers=32,
    d_model=4096,
    num_heads=32,
    num_kv_heads=8,
    head_size=128,
    d_ff=14_336,
    qk_norm=False,
    rope_theta=5e5,
    rope_scaling=config_lib.RopeScaling(
        "llama3", factor=8.0, original_length=8192, slow_turns=1.0, fast_turns=4.0
    ),
    norm_eps=1e-5,
)
_LLAMA3_2_3B = dataclasses.replace(
    _LLAMA3_1_8B,
    num_layers=28,
    d_model=3072,
    num_heads=24,
    d_ff=8192,
    rope_scaling=dataclasses.replace(_LLAMA3_1_8B.rope_scaling, factor=32.0),
    tie_embeddings=True,
)
_SMOLLM2_135M = config_lib.ModelConfig(
    vocab_size=49_152,
    num_layers=30,
    d_model=576,
    num_heads=9,
    num_kv_heads=3,
    head_size=64,
    d_ff=1536,
    qk_norm=False,
    rope_theta=1e5,
    norm_eps=1e-5,
    tie_embeddings=True,
)
_GLM4_5_AIR = config_lib.ModelConfig(
    vocab_size=151_552,
    num_layers=46,
    d_model=4096,
    num_heads=96,
    num_kv_heads=8,
    head_size=128,
    d_ff=1408,
    num_experts=128,
    experts_per_token=8,
    router="sigmoid",
    num_shared_experts=1,
    num_dense_layers=1,
    dense_d_ff=10_944,
    qk_norm=False,
    attention_bias=True,
    rotary_fraction=0.5,
    rope_theta=1e6,
    norm_eps=1e-5,
    moe_form="ragged",
)

SIZES: dict[str, config_lib.ModelConfig] = {
    "tiny": _TINY,
    "tiny_moe": dataclasses.replace(_TINY, d_ff=64, num_experts=4, experts_per_token=2),
    "tiny_llama": _TINY_LLAMA,
    "tiny_qwen2": dataclasses.replace(_TINY_LLAMA, attention_bias=True, tie_embeddings=False),
    "tiny_glm": dataclasses.replace(
        _TINY,
        num_layers=3,
        d_ff=64,
        num_experts=4,
        experts_per_token=2,
        router="sigmoid",
        expert_scale=1.5,
        num_shared_experts=1,
        num_dense_layers=1,
        dense_d_ff=128,
        qk_norm=False,
        attention_bias=True,
        rotary_fraction=0.5,
    ),
    # vLLM's attention on CPU has heads of 32 at least.
    "tiny_vllm": dataclasses.replace(_TINY, num_heads=2, num_kv_heads=1, head_size=32),
    "qwen3_0.6b": _tied(_qwen3(28, 1024, 16, 3072)),
    "qwen3_1.7b": _tied(_qwen3(28, 2048, 16, 6144)),
    "qwen3_4b": _tied(_qwen3(36, 2560, 32, 9728)),
    "qwen3_8b": _qwen3(36, 4096, 32, 12_288),
    "qwen3_14b": _qwen3(40, 5120, 40, 17_408),
    "qwen3_32b": _qwen3(64, 5120, 64, 25_600),
    "qwen3_30b_a3b": _QWEN3_30B_A3B,
    "qwen3_30b_a3b_2507": dataclasses.replace(_QWEN3_30B_A3B, rope_theta=1e7),  # longer contexts
    "qwen3_235b_a22b": _QWEN3_235B_A22B,
    "qwen2.5_0.5b": dataclasses.replace(
        _QWEN2_5_1_5B, num_layers=24, d_model=896, num_heads=14, head_size=64, d_ff=4864
    ),
    "qwen2.5_1.5b": _QWEN2_5_1_5B,
    "qwen2.5_7b": _QWEN2_5_7B,
    "llama3.2_1b": dataclasses.replace(
        _LLAMA3_2_3B, num_layers=16, d_model=2048, num_heads=32, head_size=64
    ),
    "llama3.2_3b": _LLAMA3_2_3B,
    "llama3.1_8b": _LLAMA3_1_8B,
    "smollm2_135m": _SMOLLM2_135M,
    "smollm2_360m": dataclasses.replace(
        _SMOLLM2_135M, num_layers=32, d_model=960, num_heads=15, num_kv_heads=5, d_ff=2560
    ),
    "smollm2_1.7b": dataclasses.replace(
        _SMOLLM2_135M,
        num_layers=24,
        d_model=2048,
        num_heads=32,
        num_kv_heads=32,
        d_ff=8192,
        rope_theta=1.3e5,
    ),
    "glm4.5_air": _GLM4_5_AIR,
    "glm4.5": dataclasses.replace(
        _GLM4_5_AIR,
        num_layers=92,
        d_model=5120,
        d_ff=1536,
        num_experts=160,
        expert_scale=2.5,
        num_dense_layers=3,
        dense_d_ff=12_288,
        qk_norm=True,
    ),
}


def get(
    name: str, *, vocab_size: int, dtype: str = "float32", remat: bool = False
) -> config_lib.ModelConfig:
    """The named size with the vocabulary of a tokenizer.

    Raises:
      ValueError: unknown name; the message lists the known ones.
    """
    if name not in SIZES:
        raise ValueError(f"model config: size {name!r}, known sizes are {sorted(SIZES)}")
    return dataclasses.replace(SIZES[name], vocab_size=vocab_size, dtype=dtype, remat=remat)
