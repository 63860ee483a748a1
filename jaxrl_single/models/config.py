"""Shapes of the models, by name. A config is a value: hashable, comparable, fixed at build time."""

from __future__ import annotations

import dataclasses

DTYPES = ("float32", "bfloat16")
MOE_FORMS = ("dense", "ragged", "blocks")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Qwen3 family: pre-norm, rotary positions, grouped queries, q/k norms.

    Attributes:
      vocab_size: V, rows of the embedding; token ids are 0 .. V-1.
      num_layers: L.
      d_model: D, width of the residual stream.
      num_heads: N, query heads.
      num_kv_heads: K, key/value heads; divides N.
      head_size: H, even because rotary positions turn pairs.
      d_ff: F, hidden width of the MLP, or of each expert.
      num_experts: E; 0 makes a dense model.
      experts_per_token: experts that each token passes through; their weights sum to 1.
      rope_theta: base of the rotary wavelengths.
      norm_eps: added to the mean square in every RMSNorm.
      tie_embeddings: the unembedding is the embedding table.
      dtype: of parameters and activations, one of DTYPES; norms, softmaxes, the router and
        the values are computed in float32 always.
      remat: recompute each layer in the backward pass; less memory, one more forward.
      moe_form: how training and prefill compute the experts (equal results, see models/moe.py).
    """

    vocab_size: int
    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    d_ff: int
    num_experts: int = 0
    experts_per_token: int = 0
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = False
    dtype: str = "float32"
    remat: bool = False
    moe_form: str = "dense"

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPES, f"dtype {self.dtype!r}, allowed are {DTYPES}")
        _require(self.moe_form in MOE_FORMS, f"moe_form {self.moe_form!r}, allowed: {MOE_FORMS}")
        for name in ("vocab_size", "num_layers", "d_model", "num_kv_heads", "head_size", "d_ff"):
            _require(getattr(self, name) > 0, f"{name} {getattr(self, name)}, must be positive")
        _require(
            self.num_heads > 0 and self.num_heads % self.num_kv_heads == 0,
            f"num_heads {self.num_heads}, must be a multiple of num_kv_heads {self.num_kv_heads}",
        )
        _require(self.head_size % 2 == 0, f"head_size {self.head_size}, must be even")
        allowed = (1, self.num_experts) if self.num_experts else (0, 0)
        _require(
            allowed[0] <= self.experts_per_token <= allowed[1],
            f"experts_per_token {self.experts_per_token} with num_experts {self.num_experts}, "
            f"must lie in {allowed[0]} .. {allowed[1]}",
        )

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(f"model config: {problem}")


_TINY = ModelConfig(
    vocab_size=64,
    num_layers=2,
    d_model=64,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    d_ff=128,
)

_QWEN3_30B_A3B = ModelConfig(
    vocab_size=151_936,
    num_layers=48,
    d_model=2048,
    num_heads=32,
    num_kv_heads=4,
    head_size=128,
    d_ff=768,
    num_experts=128,
    experts_per_token=8,
    rope_theta=1e6,
    moe_form="ragged",
)

SIZES: dict[str, ModelConfig] = {
    "tiny": _TINY,
    "tiny_moe": dataclasses.replace(_TINY, d_ff=64, num_experts=4, experts_per_token=2),
    # vLLM's attention on CPU has heads of 32 at least.
    "tiny_vllm": dataclasses.replace(_TINY, num_heads=2, num_kv_heads=1, head_size=32),
    "qwen3_30b_a3b": _QWEN3_30B_A3B,
    "qwen3_30b_a3b_2507": dataclasses.replace(_QWEN3_30B_A3B, rope_theta=1e7),  # longer contexts
}


def get(name: str, *, vocab_size: int, dtype: str = "float32", remat: bool = False) -> ModelConfig:
    """The named size with the vocabulary of a tokenizer.

    Raises:
      ValueError: unknown name; the message lists the known ones.
    """
    _require(name in SIZES, f"size {name!r}, known sizes are {sorted(SIZES)}")
    return dataclasses.replace(SIZES[name], vocab_size=vocab_size, dtype=dtype, remat=remat)
