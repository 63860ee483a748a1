"""Shapes of the models. A config is a value: hashable, comparable, fixed at build time."""

from __future__ import annotations

import dataclasses

DTYPES = ("float32", "bfloat16")
MOE_FORMS = ("dense", "ragged", "blocks")
ROPE_KINDS = ("linear", "dynamic", "llama3", "yarn")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary positions stretch over longer contexts than those of pretraining: models/rope.py.

    Attributes:
      kind: one of ROPE_KINDS.
      factor: by how much they stretch, at least 1.
      original_length: tokens of the longest sequence before; "linear" asks for none.
      slow_turns: pairs that turn fewer times than this within original_length are stretched in
        full ("llama3" and "yarn" alone).
      fast_turns: pairs that turn more often are left as they are; those between get a mixture.
      attention_factor: "yarn" alone, of queries and keys; None = 0.1 ln(factor) + 1.
      truncate: "yarn" alone, its two bounds are rounded to whole pairs.
    """

    kind: str
    factor: float
    original_length: int = 0
    slow_turns: float = 1.0
    fast_turns: float = 32.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _require(self.kind in ROPE_KINDS, f"rope scaling {self.kind!r}, allowed are {ROPE_KINDS}")
        _require(self.factor >= 1, f"rope scaling factor {self.factor}, must be at least 1")
        _require(
            self.kind == "linear" or self.original_length > 0,
            f"rope scaling {self.kind!r} with original_length {self.original_length}, must be "
            "positive",
        )
        _require(
            0 < self.slow_turns < self.fast_turns,
            f"rope scaling with slow_turns {self.slow_turns} and fast_turns {self.fast_turns}, "
            "must be positive and ascending",
        )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder: pre-norm, rotary positions, grouped queries, gated MLPs or experts.

    The defaults are those of the Qwen3 family.

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
      qk_norm: RMSNorm of each query and key head before it is turned.
      attention_bias: of the projections to queries, keys and values.
      rope_theta: base of the rotary wavelengths.
      rope_scaling: how they stretch; None = they do not.
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
    qk_norm: bool = True
    attention_bias: bool = False
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
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
        scaling = self.rope_scaling
        _require(
            scaling is None or scaling.kind != "dynamic" or self.head_size > 2,
            f"head_size {self.head_size}, must be above 2 for dynamic rope scaling",
        )

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(f"model config: {problem}")
