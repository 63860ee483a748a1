"""Shapes of the models. A config is a value: hashable, comparable, fixed at build time."""

from __future__ import annotations

import dataclasses

DTYPES = ("float32", "bfloat16")  # wide ones first
MOE_FORMS = ("dense", "ragged", "blocks")
ROUTERS = ("softmax", "sigmoid")
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
      experts_per_token: experts that each token passes through.
      router: one of ROUTERS, how logits become the weights of experts; see models/moe.py.
      normalize_experts: the weights of the experts of a token are divided by their sum.
      expert_scale: and multiplied by this.
      num_shared_experts: experts that every token passes through besides, with weight 1.
      num_dense_layers: layers before those with experts; they have an MLP.
      dense_d_ff: hidden width of those.
      qk_norm: RMSNorm of each query and key head before it is turned.
      attention_bias: of the projections to queries, keys and values.
      rotary_fraction: share of each query and key head that turns, the first part of it.
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
    router: str = "softmax"
    normalize_experts: bool = True
    expert_scale: float = 1.0
    num_shared_experts: int = 0
    num_dense_layers: int = 0
    dense_d_ff: int = 0
    qk_norm: bool = True
    attention_bias: bool = False
    rotary_fraction: float = 1.0
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
        self._check_rotation()
        self._check_experts()

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def rotary_size(self) -> int:
        """R, entries of a query or key head that turn; even because pairs turn."""
        return int(self.head_size * self.rotary_fraction)

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts; they come last."""
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    def _check_rotation(self) -> None:
        least = 4 if self.rope_scaling is not None and self.rope_scaling.kind == "dynamic" else 2
        _require(
            0 < self.rotary_fraction <= 1
            and self.rotary_size >= least
            and self.rotary_size % 2 == 0,
            f"{self.rotary_size} entries of a head turn (head_size {self.head_size}, "
            f"rotary_fraction {self.rotary_fraction}), must be even and lie in {least} .. "
            f"{self.head_size}",
        )

    def _check_experts(self) -> None:
        _require(self.router in ROUTERS, f"router {self.router!r}, allowed are {ROUTERS}")
        allowed = (1, self.num_experts) if self.num_experts else (0, 0)
        _require(
            allowed[0] <= self.experts_per_token <= allowed[1],
            f"experts_per_token {self.experts_per_token} with num_experts {self.num_experts}, "
            f"must lie in {allowed[0]} .. {allowed[1]}",
        )
        most = self.num_layers - 1 if self.num_experts else 0
        _require(
            0 <= self.num_dense_layers <= most,
            f"num_dense_layers {self.num_dense_layers} with num_experts {self.num_experts} and "
            f"num_layers {self.num_layers}, must lie in 0 .. {most}",
        )
        _require(
            self.dense_d_ff > 0 or not self.num_dense_layers,
            f"dense_d_ff {self.dense_d_ff} with num_dense_layers {self.num_dense_layers}, "
            "must be positive",
        )
        _require(
            self.num_shared_experts == 0 or (self.num_experts > 0 < self.num_shared_experts),
            f"num_shared_experts {self.num_shared_experts} with num_experts {self.num_experts}, "
            "must be 0 without experts, and never negative",
        )


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(f"model config: {problem}")
