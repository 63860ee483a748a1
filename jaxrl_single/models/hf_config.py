"""Reads and writes the JSON files of Hugging Face checkpoints; see hf_families.py. No jax."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import hf_families, hf_rope

_MISSING = object()


@dataclasses.dataclass(frozen=True)
class Description:
    """What the JSON files of a checkpoint say.

    Attributes:
      model: its shape.
      context_length: most tokens of a sequence that it was made for.
      stop_token_ids: generation ends after one of these; empty if no file names any.
      unread: beginnings of names of tensors that are no part of our model.
    """

    model: config_lib.ModelConfig
    context_length: int
    stop_token_ids: tuple[int, ...]
    unread: tuple[str, ...] = ()


_CONTEXT = "max_position_embeddings"
_DTYPE = ("dtype", "torch_dtype")
_MANY_EXPERTS = 8
_GENERATION = "generation_config.json"
# transformers has a class with one number for each token: a value, if there is one label.
_POLICY, _CRITIC = "ForCausalLM", "ForTokenClassification"
_KINDS = {field.name: str(field.type) for field in dataclasses.fields(config_lib.ModelConfig)}


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
    model, context_length = parse(path, found, dtype=dtype)
    return Description(model, context_length, stop_token_ids(directory), _unread(found, model))


def parse(
    path: pathlib.Path, found: Mapping[str, Any], *, dtype: str | None = None
) -> tuple[config_lib.ModelConfig, int]:
    """Shape and context length from the content of a config.json; see `read`.

    Args:
      path: of the file, for messages.
    """
    model_type = found.get("model_type")
    if model_type not in hf_families.FAMILIES:
        known = sorted(hf_families.FAMILIES)
        raise ValueError(f"{path}: model_type is {model_type!r}; this package reads {known}")
    family = hf_families.FAMILIES[model_type]
    for name, only, absent in family.fixed:
        value = _value(found, name)
        value = absent if value in (_MISSING, None) else value
        if value != only:
            raise ValueError(f"{path}: {name} is {value!r}; our {model_type} has {only!r} only")
    fields = _fields(path, found, family)
    context_length = _required(path, found, (_CONTEXT,), "int")
    model = config_lib.ModelConfig(
        **fields,
        **family.implied,
        rope_scaling=hf_rope.read(path, found, context_length=context_length),
        dtype=dtype or _dtype(path, found),
        # The dense form computes every expert for every token.
        moe_form="dense" if fields.get("num_experts", 0) <= _MANY_EXPERTS else "ragged",
    )
    return model, context_length


def _unread(found: Mapping[str, Any], model: config_lib.ModelConfig) -> tuple[str, ...]:
    """Names of the layers behind the last one begin with these."""
    field = hf_families.FAMILIES[found["model_type"]].more_layers
    count = found.get(field) or 0
    numbers = range(model.num_layers, model.num_layers + count)
    return tuple(f"model.layers.{number}." for number in numbers)


def is_critic(directory: pathlib.Path) -> bool:
    """Whether config.json is of a model that gives every token a value."""
    names = read_object(directory / "config.json").get("architectures") or [""]
    return str(names[0]).endswith(_CRITIC)


def stop_token_ids(directory: pathlib.Path) -> tuple[int, ...]:
    """eos_token_id of generation_config.json, else of config.json: a number or a list of them.

    Raises:
      ValueError: it is something else.
    """
    for name in (_GENERATION, "config.json"):
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


def write(directory: pathlib.Path, description: Description, *, is_critic: bool = False) -> None:
    """Writes config.json and, unless it is there, generation_config.json."""
    _write_object(directory / "config.json", to_json(description, is_critic=is_critic))
    if not (directory / _GENERATION).exists():
        write_stop_token_ids(directory, description.stop_token_ids)


def write_stop_token_ids(directory: pathlib.Path, ids: tuple[int, ...]) -> None:
    """Writes generation_config.json, if there are any."""
    if ids:
        _write_object(directory / _GENERATION, {"eos_token_id": list(ids)})


def to_json(description: Description, *, is_critic: bool = False) -> dict[str, Any]:
    """config.json of a checkpoint that we write; old and new transformers and vLLM read it."""
    config = description.model
    family = hf_families.family_of(config)
    written: dict[str, Any] = {
        "architectures": [
            family.architecture.replace(_POLICY, _CRITIC) if is_critic else family.architecture
        ],
        "model_type": family.model_type,
        _CONTEXT: _written_context(description),
        # The dense width, which transformers asks of MoE models too and uses in no layer.
        "intermediate_size": config.d_ff,
        "eos_token_id": list(description.stop_token_ids) or None,
        "rope_parameters": hf_rope.write(config.rope_scaling),
        "rope_scaling": hf_rope.write(config.rope_scaling) if config.rope_scaling else None,
    }
    if is_critic:
        written["num_labels"] = 1
    if family.more_layers:
        written[family.more_layers] = 0
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


def _written_context(description: Description) -> int:
    """max_position_embeddings; dynamic scaling begins there, so it is no free choice then."""
    scaling = description.model.rope_scaling
    if scaling is not None and scaling.kind == "dynamic":
        return scaling.original_length
    return description.context_length


def _fields(
    path: pathlib.Path, found: Mapping[str, Any], family: hf_families.Family
) -> dict[str, Any]:
    """Our fields that config.json says."""
    fields: dict[str, Any] = {}
    for ours, names in family.fields.items():
        if ours in family.absent and all(_value(found, n) in (_MISSING, None) for n in names):
            fields[ours] = family.absent[ours](fields)
        else:
            fields[ours] = _required(path, found, names, _KINDS[ours])
    return fields


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


def _write_object(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


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
