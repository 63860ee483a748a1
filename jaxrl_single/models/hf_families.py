"""The families of Hugging Face checkpoints that we know: names of fields and tensors. No jax.

A family is data: names of fields, values that must hold because our model knows no others, and
names and shapes of tensors. Spellings differ between releases of transformers, so a field has
several; all are read and, where a release would not understand the other's, all are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_single.models import config as config_lib


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One of our leaves and its tensors in a checkpoint.

    Attributes:
      path: of our leaf. With {layer} in the name it has a leading axis of layers, with {expert}
        then one of experts.
      name: of theirs, such as "model.layers.{layer}.mlp.up_proj.weight".
      axes: their shape in letters of `dimensions`.
      transposed: our matrices are [in, out], those of torch [out, in].
      dtype: of both, whatever the rest of the model has; "" = as the rest.
      when: it exists where this field of ModelConfig is not false or 0; "" = always.
    """

    path: str
    name: str
    axes: str
    transposed: bool = False
    dtype: str = ""
    when: str = ""


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one `model_type`.

    Attributes:
      architecture: the class that transformers and vLLM load.
      fields: our ModelConfig field -> its spellings in config.json; a dot goes into an object.
      implied: our ModelConfig field -> its value in this family, which config.json does not say.
      absent: our ModelConfig field -> its value where config.json lacks it, given those before it.
      fixed: (field, the only value that our model computes, value where the field is absent).
      more_layers: field with the number of layers behind the last one, which predict further tokens
        for speculative decoding. They are not read, and 0 is written. "" = there are none.
      tensors: of the decoder, without the unembedding.
    """

    model_type: str
    architecture: str
    fields: Mapping[str, tuple[str, ...]]
    fixed: tuple[tuple[str, Any, Any], ...]
    tensors: tuple[Tensor, ...]
    implied: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    absent: Mapping[str, Callable[[Mapping[str, Any]], Any]] = dataclasses.field(
        default_factory=dict
    )
    more_layers: str = ""


UNEMBEDDING = Tensor("unembedding/table", "lm_head.weight", "VD")
VALUE_HEAD = (  # of a critic; transformers has it as a classifier of tokens with one class
    Tensor("value_head/kernel", "score.weight", "1D", transposed=True),
    Tensor("value_head/bias", "score.bias", "1"),
)

_FIELDS = {
    "vocab_size": ("vocab_size",),
    "num_layers": ("num_hidden_layers",),
    "d_model": ("hidden_size",),
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "rope_theta": ("rope_parameters.rope_theta", "rope_theta"),
    "norm_eps": ("rms_norm_eps",),
    "tie_embeddings": ("tie_word_embeddings",),
}
_DENSE_FIELDS = _FIELDS | {"d_ff": ("intermediate_size",)}
_ABSENT = {
    "num_kv_heads": lambda fields: fields["num_heads"],
    "head_size": lambda fields: fields["d_model"] // fields["num_heads"],
    "rope_theta": lambda fields: 10_000.0,
    "tie_embeddings": lambda fields: False,
}
_FIXED = (
    ("hidden_act", "silu", "silu"),
    ("quantization_config", None, None),
)
_NO_BIAS = ("attention_bias", False, False)
_NO_WINDOW = ("use_sliding_window", False, False)
_LAYER = "model.layers.{layer}."


def _attention(path: str) -> tuple[Tensor, ...]:
    """The attention of a layer, and both norms."""
    ours, theirs = f"{path}/attention/", _LAYER + "self_attn."
    widths = {"q": "Q", "k": "C", "v": "C"}
    weights = [
        Tensor(f"{ours}{part}_proj", f"{theirs}{part}_proj.weight", width + "D", transposed=True)
        for part, width in widths.items()
    ]
    biases = [
        Tensor(f"{ours}{part}_bias", f"{theirs}{part}_proj.bias", width, when="attention_bias")
        for part, width in widths.items()
    ]
    norms = [
        Tensor(f"{ours}{part}_norm/scale", f"{theirs}{part}_norm.weight", "H", when="qk_norm")
        for part in "qk"
    ]
    return (
        Tensor(f"{path}/attention_norm/scale", _LAYER + "input_layernorm.weight", "D"),
        Tensor(f"{path}/mlp_norm/scale", _LAYER + "post_attention_layernorm.weight", "D"),
        *weights,
        Tensor(f"{ours}o_proj", f"{theirs}o_proj.weight", "DQ", transposed=True),
        *biases,
        *norms,
    )


def _gated(path: str, name: str, width: str = "F", *, when: str = "") -> tuple[Tensor, ...]:
    """The three matrices of a gated MLP whose hidden width is a letter of `dimensions`."""
    parts = {"gate": width + "D", "up": width + "D", "down": "D" + width}
    return tuple(
        Tensor(f"{path}/{part}", f"{name}.{part}_proj.weight", axes, transposed=True, when=when)
        for part, axes in parts.items()
    )


_ENDS = (
    Tensor("embedding/table", "model.embed_tokens.weight", "VD"),
    Tensor("final_norm/scale", "model.norm.weight", "D"),
)
_EXPERTS = (
    Tensor("layers/router/kernel", _LAYER + "mlp.gate.weight", "ED", transposed=True),
    *_gated("layers/experts", _LAYER + "mlp.experts.{expert}"),
)
_DENSE_TENSORS = (*_ENDS, *_attention("layers"), *_gated("layers/mlp", _LAYER + "mlp"))

_QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    fields=_DENSE_FIELDS,
    fixed=(*_FIXED, _NO_BIAS, _NO_WINDOW),
    tensors=_DENSE_TENSORS,
)
_QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    fields={
        **_FIELDS,
        "d_ff": ("moe_intermediate_size",),
        "num_experts": ("num_experts", "num_local_experts"),
        "experts_per_token": ("num_experts_per_tok",),
        "normalize_experts": ("norm_topk_prob",),
    },
    absent={"normalize_experts": lambda fields: False},
    fixed=(
        *_FIXED,
        _NO_BIAS,
        _NO_WINDOW,
        ("decoder_sparse_step", 1, 1),
        ("mlp_only_layers", [], []),
    ),
    tensors=(*_ENDS, *_attention("layers"), *_EXPERTS),
)
_QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    fields=_DENSE_FIELDS,
    implied={"qk_norm": False, "attention_bias": True},
    absent=_ABSENT,
    fixed=(*_FIXED, _NO_WINDOW),
    tensors=_DENSE_TENSORS,
)
_LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    fields=_DENSE_FIELDS,
    implied={"qk_norm": False},
    absent=_ABSENT,
    fixed=(*_FIXED, _NO_BIAS, ("mlp_bias", False, False)),
    tensors=_DENSE_TENSORS,
)
_GLM4_MOE = Family(
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    fields={
        **_FIELDS,
        "d_ff": ("moe_intermediate_size",),
        "num_experts": ("n_routed_experts",),
        "experts_per_token": ("num_experts_per_tok",),
        "normalize_experts": ("norm_topk_prob",),
        "expert_scale": ("routed_scaling_factor",),
        "num_shared_experts": ("n_shared_experts",),
        "num_dense_layers": ("first_k_dense_replace",),
        "dense_d_ff": ("intermediate_size",),
        "qk_norm": ("use_qk_norm",),
        "attention_bias": ("attention_bias",),
        "rotary_fraction": ("rope_parameters.partial_rotary_factor", "partial_rotary_factor"),
    },
    implied={"router": "sigmoid"},
    absent={
        **_ABSENT,
        "normalize_experts": lambda fields: True,
        "expert_scale": lambda fields: 1.0,
        "num_shared_experts": lambda fields: 1,
        "num_dense_layers": lambda fields: 1,
        "qk_norm": lambda fields: False,
        "attention_bias": lambda fields: False,
        "rotary_fraction": lambda fields: 0.5,
    },
    fixed=(*_FIXED, ("n_group", 1, 1), ("topk_group", 1, 1)),
    tensors=(
        *_ENDS,
        *_attention("dense_layers"),
        *_gated("dense_layers/mlp", _LAYER + "mlp", "G"),
        *_attention("layers"),
        *_EXPERTS,
        Tensor(
            "layers/router/bias",
            _LAYER + "mlp.gate.e_score_correction_bias",
            "E",
            dtype="float32",
        ),
        *_gated(
            "layers/shared_experts", _LAYER + "mlp.shared_experts", "S", when="num_shared_experts"
        ),
    ),
    more_layers="num_nextn_predict_layers",
)
FAMILIES = {family.model_type: family for family in (_QWEN3, _QWEN3_MOE, _QWEN2, _LLAMA, _GLM4_MOE)}

# Of ModelConfig: what changes no number of a model, and what every family reads and writes alike.
_ANY_FAMILY = {"dtype", "remat", "moe_form", "rope_scaling"}


def family_of(config: config_lib.ModelConfig) -> Family:
    """The family that computes what a model of this config does.

    Raises:
      ValueError: none does.
    """
    for family in FAMILIES.values():
        if not _differences(family, config):
            return family
    closest = min(FAMILIES.values(), key=lambda family: len(_differences(family, config)))
    raise ValueError(
        f"no family of Hugging Face checkpoints computes this model config: of {sorted(FAMILIES)}, "
        f"{closest.model_type} is the closest, but for {_differences(closest, config)}"
    )


def tensors_of(config: config_lib.ModelConfig) -> tuple[Tensor, ...]:
    """All leaves of a policy of this config."""
    found = tuple(
        tensor
        for tensor in family_of(config).tensors
        if layer_numbers(config, tensor) is None or len(layer_numbers(config, tensor))
        if not tensor.when or getattr(config, tensor.when)
    )
    return found if config.tie_embeddings else (*found, UNEMBEDDING)


def layer_numbers(config: config_lib.ModelConfig, tensor: Tensor) -> range | None:
    """Their numbers of the layers that lie along our leaf's axis of layers; None without one."""
    if "{layer}" not in tensor.name:
        return None
    if tensor.path.startswith("dense_layers/"):
        return range(config.num_dense_layers)
    return range(config.num_dense_layers, config.num_layers)


def dimensions(config: config_lib.ModelConfig) -> dict[str, int]:
    """Sizes by the letters of `Tensor.axes`.

    Q and C are the widths of queries and keys; F, G and S are the hidden widths of MLPs or experts,
    of the dense layers before experts, and of shared experts.
    """
    return {
        "1": 1,
        "V": config.vocab_size,
        "D": config.d_model,
        "F": config.d_ff,
        "G": config.dense_d_ff,
        "S": config.num_shared_experts * config.d_ff,
        "E": config.num_experts,
        "H": config.head_size,
        "Q": config.num_heads * config.head_size,
        "C": config.num_kv_heads * config.head_size,
    }


def _differences(family: Family, config: config_lib.ModelConfig) -> dict[str, Any]:
    """What the config has that the family can't have."""
    others = [
        field
        for field in dataclasses.fields(config)
        if field.name not in family.fields and field.name not in _ANY_FAMILY
    ]
    found = {field.name: getattr(config, field.name) for field in others}
    expected = {field.name: family.implied.get(field.name, field.default) for field in others}
    return {name: value for name, value in found.items() if value != expected[name]}
