"""Hugging Face's config.json and ours: the families we know, the names of their fields. No jax.

A family is data: names of fields, values that must hold because our model knows no others, and
names and shapes of tensors. Spellings differ between releases of transformers, so a field has
several; all are read and, where a release would not understand the other's, all are written.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxrl_single.models import config as config_lib

_MISSING = object()


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One of our leaves and its tensors in a checkpoint.

    Attributes:
      path: of our leaf. With {layer} in the name it has a leading axis of layers, with {expert}
        then one of experts.
      name: of theirs, such as "model.layers.{layer}.mlp.up_proj.weight".
      axes: their shape in letters of `dimensions`.
      transposed: our matrices are [in, out], those of torch [out, in].
    """

    path: str
    name: str
    axes: str
    transposed: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one `model_type`.

    Attributes:
      architecture: the class that transformers and vLLM load.
      fields: our ModelConfig field -> its spellings in config.json; a dot goes into an object.
      fixed: (field, the only value that our model computes, value where the field is absent).
      tensors: of the decoder, without the unembedding.
    """

    model_type: str
    architecture: str
    fields: Mapping[str, tuple[str, ...]]
    fixed: tuple[tuple[str, Any, Any], ...]
    tensors: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Description:
    """What the JSON files of a checkpoint say.

    Attributes:
      model: its shape.
      context_length: most tokens of a sequence that it was made for.
      stop_token_ids: generation ends after one of these; empty if no file names any.
    """

    model: config_lib.ModelConfig
    context_length: int
    stop_token_ids: tuple[int, ...]


UNEMBEDDING = Tensor("unembedding/table", "lm_head.weight", "VD")
_CONTEXT = "max_position_embeddings"
_DTYPE = ("dtype", "torch_dtype")
_MANY_EXPERTS = 8
_KINDS = {field.name: str(field.type) for field in dataclasses.fields(config_lib.ModelConfig)}

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
_FIXED = (
    ("hidden_act", "silu", "silu"),
    ("attention_bias", False, False),
    ("use_sliding_window", False, False),
    ("rope_parameters.rope_type", "default", "default"),
    ("rope_scaling", None, None),
    ("quantization_config", None, None),
)
_LAYER = "model.layers.{layer}."
_ATTENTION = (
    Tensor("layers/attention_norm/scale", _LAYER + "input_layernorm.weight", "D"),
    Tensor("layers/attention/q_proj", _LAYER + "self_attn.q_proj.weight", "QD", transposed=True),
    Tensor("layers/attention/k_proj", _LAYER + "self_attn.k_proj.weight", "CD", transposed=True),
    Tensor("layers/attention/v_proj", _LAYER + "self_attn.v_proj.weight", "CD", transposed=True),
    Tensor("layers/attention/o_proj", _LAYER + "self_attn.o_proj.weight", "DQ", transposed=True),
    Tensor("layers/attention/q_norm/scale", _LAYER + "self_attn.q_norm.weight", "H"),
    Tensor("layers/attention/k_norm/scale", _LAYER + "self_attn.k_norm.weight", "H"),
    Tensor("layers/mlp_norm/scale", _LAYER + "post_attention_layernorm.weight", "D"),
)
_ENDS = (
    Tensor("embedding/table", "model.embed_tokens.weight", "VD"),
    Tensor("final_norm/scale", "model.norm.weight", "D"),
)


def _gated(path: str, name: str) -> tuple[Tensor, ...]:
    """The three matrices of a gated MLP."""
    return (
        Tensor(f"{path}/gate", f"{name}.gate_proj.weight", "FD", transposed=True),
        Tensor(f"{path}/up", f"{name}.up_proj.weight", "FD", transposed=True),
        Tensor(f"{path}/down", f"{name}.down_proj.weight", "DF", transposed=True),
    )


_QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    fields={**_FIELDS, "d_ff": ("intermediate_size",)},
    fixed=_FIXED,
    tensors=(*_ENDS, *_ATTENTION, *_gated("layers/mlp", _LAYER + "mlp")),
)
_QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    fields={
        **_FIELDS,
        "d_ff": ("moe_intermediate_size",),
        "num_experts": ("num_experts", "num_local_experts"),
        "experts_per_token": ("num_experts_per_tok",),
    },
    fixed=(
        *_FIXED,
        ("norm_topk_prob", True, False),
        ("decoder_sparse_step", 1, 1),
        ("mlp_only_layers", [], []),
    ),
    tensors=(
        *_ENDS,
        *_ATTENTION,
        Tensor("layers/router/kernel", _LAYER + "mlp.gate.weight", "ED", transposed=True),
        *_gated("layers/experts", _LAYER + "mlp.experts.{expert}"),
    ),
)
FAMILIES = {family.model_type: family for family in (_QWEN3, _QWEN3_MOE)}


def family_of(config: config_lib.ModelConfig) -> Family:
    """The family that computes what a model of this config does."""
    return _QWEN3_MOE if config.num_experts else _QWEN3


def tensors_of(config: config_lib.ModelConfig) -> tuple[Tensor, ...]:
    """All leaves of a policy of this config."""
    decoder = family_of(config).tensors
    return decoder if config.tie_embeddings else (*decoder, UNEMBEDDING)


def dimensions(config: config_lib.ModelConfig) -> dict[str, int]:
    """Sizes by the letters of `Tensor.axes`; Q and C are the widths of queries and keys."""
    return {
        "V": config.vocab_size,
        "D": config.d_model,
        "F": config.d_ff,
        "E": config.num_experts,
        "H": config.head_size,
        "Q": config.num_heads * config.head_size,
        "C": config.num_kv_heads * config.head_size,
    }


def read(directory: pathlib.Path, *, dtype: str | None = None) -> Description:
    """Reads config.json and, if there is one, generation_config.json.

    Args:
      dtype: of parameters and activations, one of config.DTYPES; None = the checkpoint's own.

    Raises:
      ValueError: a family, field or value that our model does not compute; the message names it.
      OSError: the file cannot be read.
    """
    path = directory / "config.json"
    found = read_object(path)
    model_type = found.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(
            f"{path}: model_type is {model_type!r}; this package reads {sorted(FAMILIES)}"
        )
    family = FAMILIES[model_type]
    for name, only, absent in family.fixed:
        value = _value(found, name)
        value = absent if value in (_MISSING, None) else value
        if value != only:
            raise ValueError(f"{path}: {name} is {value!r}; our {model_type} has {only!r} only")
    fields = {
        ours: _required(path, found, names, _KINDS[ours]) for ours, names in family.fields.items()
    }
    model = config_lib.ModelConfig(
        **fields,
        dtype=dtype or _dtype(path, found),
        # The dense form computes every expert for every token.
        moe_form="dense" if fields.get("num_experts", 0) <= _MANY_EXPERTS else "ragged",
    )
    context_length = _required(path, found, (_CONTEXT,), "int")
    return Description(model, context_length, stop_token_ids(directory))


def stop_token_ids(directory: pathlib.Path) -> tuple[int, ...]:
    """eos_token_id of generation_config.json, else of config.json: a number or a list of them.

    Raises:
      ValueError: it is something else.
    """
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        ids = read_object(path).get("eos_token_id") if path.exists() else None
        if ids is None:
            continue
        ids = ids if isinstance(ids, list) else [ids]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ValueError(
                f"{path}: eos_token_id is {ids!r}, expected a number or a list of them"
            )
        return tuple(ids)
    return ()


def to_json(description: Description) -> dict[str, Any]:
    """config.json of a checkpoint that we write; old and new transformers and vLLM read it."""
    config = description.model
    family = family_of(config)
    written: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        _CONTEXT: description.context_length,
        # The dense width, which transformers asks of MoE models too and uses in no layer.
        "intermediate_size": config.d_ff,
        "eos_token_id": list(description.stop_token_ids) or None,
    }
    written |= dict.fromkeys(_DTYPE, config.dtype)
    values = [(name, only) for name, only, _ in family.fixed]
    values += [
        (name, getattr(config, ours)) for ours, names in family.fields.items() for name in names
    ]
    for name, value in values:
        *parents, last = name.split(".")
        node = written
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    del written["quantization_config"]  # readers ask whether it is there, not what it is
    return dict(sorted(written.items()))


def read_object(path: pathlib.Path) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
      ValueError: it holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, found a {type(found).__name__}")
    return found


def _required(
    path: pathlib.Path, found: Mapping[str, Any], names: tuple[str, ...], kind: str
) -> Any:
    values = [_value(found, name) for name in names]
    values = [value for value in values if value not in (_MISSING, None)]
    if not values:
        raise ValueError(f"{path}: {' or '.join(names)} is missing")
    for value in values:
        if not _is_a(value, kind):
            raise ValueError(f"{path}: {' or '.join(names)} is {value!r}, expected {kind}")
        if value != values[0]:
            raise ValueError(f"{path}: {' and '.join(names)} contradict each other: {values}")
    return values[0]


def _is_a(value: Any, kind: str) -> bool:
    if kind in ("bool", "str"):
        return type(value).__name__ == kind
    return not isinstance(value, bool) and isinstance(value, int if kind == "int" else (int, float))


def _value(found: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name, _MISSING where there is none."""
    node: Any = found
    for key in name.split("."):
        if not isinstance(node, dict) or key not in node:
            return _MISSING
        node = node[key]
    return node


def _dtype(path: pathlib.Path, found: Mapping[str, Any]) -> str:
    dtype = _required(path, found, _DTYPE, "str")
    if dtype not in config_lib.DTYPES:
        raise ValueError(
            f"{path}: dtype is {dtype!r}; choose one of {config_lib.DTYPES} to convert it to"
        )
    return dtype
