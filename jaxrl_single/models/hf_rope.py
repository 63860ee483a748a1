"""Scaled rotary positions in Hugging Face's config.json. No jax."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from jaxrl_single.models import config as config_lib

_OBJECTS = ("rope_scaling", "rope_parameters")  # of older and of newer releases
_SHARED = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
# Our RopeScaling field -> theirs. Where theirs is absent, our default holds.
_KEYS: dict[str, dict[str, str]] = {
    "linear": {"factor": "factor"},
    "dynamic": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "slow_turns": "low_freq_factor",
        "fast_turns": "high_freq_factor",
    },
    "yarn": {
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "slow_turns": "beta_slow",
        "fast_turns": "beta_fast",
        "attention_factor": "attention_factor",
        "truncate": "truncate",
    },
}
_NEEDED = {"factor", "low_freq_factor", "high_freq_factor"}


def read(
    path: pathlib.Path, found: Mapping[str, Any], *, context_length: int
) -> config_lib.RopeScaling | None:
    """The scaling that a config.json describes, None for plain rotary positions.

    Args:
      path: of the file, for messages.
      found: what it holds.
      context_length: its max_position_embeddings.

    Raises:
      ValueError: a kind, key or value that our model does not compute; the message names it.
    """
    scalings = []
    for name in _OBJECTS:
        values = found.get(name)
        if values is None:
            continue
        if not isinstance(values, dict):
            raise ValueError(f"{path}: {name} is {values!r}, expected an object or null")
        kind = values.get("rope_type", values.get("type", "default"))
        if kind == "default":
            scalings.append(None)
        elif kind in _KEYS:
            scalings.append(_scaling(f"{path}: {name}", kind, values, context_length))
        else:
            allowed = ["default", *_KEYS]
            raise ValueError(f"{path}: {name}.rope_type is {kind!r}; this package reads {allowed}")
    if any(scaling != scalings[0] for scaling in scalings):
        raise ValueError(f"{path}: {' and '.join(_OBJECTS)} contradict each other")
    return scalings[0] if scalings else None


def write(scaling: config_lib.RopeScaling | None) -> dict[str, Any]:
    """The keys that `read` understands, without rope_theta; {"rope_type": "default"} for None."""
    if scaling is None:
        return {"rope_type": "default"}
    values = {theirs: getattr(scaling, ours) for ours, theirs in _KEYS[scaling.kind].items()}
    known = {key: value for key, value in values.items() if value is not None}
    return {"rope_type": scaling.kind, **known}


def _scaling(
    where: str, kind: str, values: Mapping[str, Any], context_length: int
) -> config_lib.RopeScaling:
    keys = _KEYS[kind]
    given = {key: value for key, value in values.items() if value is not None}
    if unknown := sorted(set(given) - _SHARED - set(keys.values())):
        raise ValueError(
            f"{where} has {unknown}; of {kind!r} this package reads {sorted(keys.values())}"
        )
    if missing := sorted(_NEEDED & set(keys.values()) - set(given)):
        raise ValueError(f"{where}.{missing[0]} is missing, which {kind!r} needs")
    for ours, theirs in keys.items():
        if theirs in given and not _fits(ours, given[theirs]):
            expected = "true or false" if ours == "truncate" else "a number"
            raise ValueError(f"{where}.{theirs} is {given[theirs]!r}, expected {expected}")
    fields = {ours: given[theirs] for ours, theirs in keys.items() if theirs in given}
    # "dynamic" stretches from the context length on; the others may leave theirs out if it is that.
    if kind != "linear":
        fields.setdefault("original_length", context_length)
    try:
        return config_lib.RopeScaling(kind, **fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _fits(ours: str, value: Any) -> bool:
    if ours == "truncate":
        return isinstance(value, bool)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
