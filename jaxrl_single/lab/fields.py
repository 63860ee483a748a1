"""Readers of the single fields of a record: JSON value -> checked value; see `records`.

A reader takes the field's name, its JSON value and the action mask, and raises ValueError with a
message for people.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_single import types

# Squares of such numbers, summed over any batch, still fit in float32; beyond, standard deviations
# become infinite and every coefficient 0.
MAX_MAGNITUDE = 1e15
_BOUNDED = f"a number from -{MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}"


def mask(value: Any) -> np.ndarray:
    """The action mask, bool [T]."""
    if not isinstance(value, list) or not value or any(entry not in (0, 1) for entry in value):
        raise ValueError(
            "action_mask must be a list of 0 and 1 (or false and true), one per token, got "
            + short(value)
        )
    return np.array(value, bool)


def _tokens(name: str, value: Any, mask: np.ndarray, *, allowed: str, good: Callable) -> np.ndarray:
    """[T] float64, 0 where the mask is 0; `good` says which entries are `allowed` elsewhere."""
    array = _numbers(name, value, len(mask), "token")
    bad = mask & ~good(array)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{name}[{at}] is {short(value[at])}, expected {allowed} on an action token"
        )
    return np.where(mask, array, 0.0)


def _any_number(name: str, value: Any, mask: np.ndarray) -> np.ndarray:
    return _tokens(name, value, mask, allowed=_BOUNDED, good=lambda x: np.abs(x) <= MAX_MAGNITUDE)


def _logprobs(name: str, value: Any, mask: np.ndarray) -> np.ndarray:
    return _tokens(name, value, mask, allowed="a log-probability, finite and <= 0", good=sampled)


def _entropies(name: str, value: Any, mask: np.ndarray) -> np.ndarray:
    allowed = "an entropy in nats, finite and >= 0"
    found = _tokens(
        name, value, mask, allowed=allowed, good=lambda x: np.isfinite(x) & (x >= -1e-5)
    )
    return np.maximum(found, 0.0)


def _integers(name: str, value: Any, mask: np.ndarray) -> np.ndarray:
    found = _tokens(name, value, mask, allowed="an integer", good=_whole)
    return found.astype(np.int64)


def _whole(x: np.ndarray) -> np.ndarray:
    return np.isfinite(x) & (x == np.round(x))


def _turn_ids(name: str, value: Any, mask: np.ndarray) -> np.ndarray:
    found = _integers(name, value, mask)
    on_actions = found[mask]
    if (np.diff(on_actions) < 0).any() or (on_actions < 0).any():
        raise ValueError(f"{name} must be 0 or more and never fall from one action to the next")
    return found


def _reward_list(name: str, value: Any, mask: np.ndarray) -> np.ndarray:
    """Kept off the mask too: it is folded onto the actions once all fields are known."""
    array = _numbers(name, value, len(mask), "token")
    array = np.where([entry is None for entry in value], 0.0, array)
    bad = np.flatnonzero(~(np.abs(array) <= MAX_MAGNITUDE))
    if len(bad):
        raise ValueError(f"{name}[{bad[0]}] is {short(value[bad[0]])}, expected {_BOUNDED} or null")
    return array


def _rows(name: str, value: Any, mask: np.ndarray) -> np.ndarray:
    """[T, width] float64; NaN where the mask is 0."""
    if not isinstance(value, list) or len(value) != len(mask):
        raise ValueError(
            f"{name} must be a list with a row for each of {len(mask)} tokens, got {short(value)}"
        )
    counted = [row for row, counts in zip(value, mask, strict=True) if counts]
    width = len(counted[0]) if counted and isinstance(counted[0], list) else 0
    array = np.full((len(mask), width), np.nan)
    for at in np.flatnonzero(mask):
        if not width or not isinstance(value[at], list):
            raise ValueError(
                f"{name}[{at}] is {short(value[at])}, expected a row of at least one number on an "
                "action token"
            )
        array[at] = _numbers(f"{name}[{at}]", value[at], width, "entry, as in the rows before it")
    if "rollout" in name and not name.startswith("aux"):
        array = np.where(mask[:, None] & np.isnan(array), -np.inf, array)
    return array


def _number(name: str, value: Any, mask: np.ndarray) -> float:
    del mask
    if not _is_number(value) or not abs(value) <= MAX_MAGNITUDE:
        raise ValueError(f"{name} is {short(value)}, expected {_BOUNDED}")
    return float(value)


def _flag(name: str, value: Any, mask: np.ndarray) -> bool:
    del mask
    if value not in (0, 1):
        raise ValueError(f"{name} is {short(value)}, expected true or false")
    return bool(value)


def _id(name: str, value: Any, mask: np.ndarray) -> str | int:
    del mask
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"{name} is {short(value)}, expected a string or an integer")
    return value


def _fork_index(name: str, value: Any, mask: np.ndarray) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= len(mask):
        raise ValueError(f"{name} is {short(value)}, expected an integer from 0 to {len(mask)}")
    return value


def _state_keys(name: str, value: Any, mask: np.ndarray) -> list[str]:
    del mask
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list with a state for each turn, got {short(value)}")
    return [json.dumps(key, sort_keys=True) for key in value]  # as text it can be compared


def _gold(name: str, value: Any, mask: np.ndarray) -> np.ndarray:
    del mask
    length = len(value) if isinstance(value, list) else 0
    array = _numbers(name, value, length, "boundary")
    if not sampled(array).all():
        raise ValueError(f"{name} must be mean log-probabilities, finite and <= 0")
    return array


def _numbers(name: str, value: Any, length: int, per: str) -> np.ndarray:
    """[length] float64, NaN for null."""
    if not isinstance(value, list) or len(value) != length:
        got = f"{len(value)} entries" if isinstance(value, list) else short(value)
        raise ValueError(f"{name} must be a list of {length} numbers, one per {per}; got {got}")
    for at, entry in enumerate(value):
        if entry is not None and not _is_number(entry):
            raise ValueError(f"{name}[{at}] is {short(entry)}, expected a number")
    return np.array([np.nan if entry is None else entry for entry in value], np.float64)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def sampled(logprobs: np.ndarray) -> np.ndarray:
    """What the log-prob of something that was drawn may be."""
    return np.isfinite(logprobs) & (logprobs <= types.LOGPROB_ROUNDING)


def short(value: Any) -> str:
    """A JSON value for a message."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


READERS: dict[str, Callable[[str, Any, np.ndarray], Any]] = {
    "id": _id,
    "task_id": _id,
    "reward": _number,
    "action_mask": lambda name, value, mask: mask,
    "policy_logprobs": _logprobs,
    "rollout_logprobs": _logprobs,
    "rewards": _reward_list,
    "values": _any_number,
    "terminated": _flag,
    "bootstrap_value": _number,
    "proximal_logprobs": _logprobs,
    "ref_logprobs": _logprobs,
    "entropies": _entropies,
    "policy_entropies": _entropies,
    "preference": _number,
    "prompt_value": _number,
    "group_id": _id,
    "turn_ids": _turn_ids,
    "state_key": _state_keys,
    "parent_id": _id,
    "fork_index": _fork_index,
    "gold_logprobs": _gold,
    "tokens": _integers,
    "policy_versions": _integers,
    "topk_tokens": _rows,
    "aux_policy_logprobs": _rows,
    "aux_rollout_logprobs": _rows,
    "topk_policy_logprobs": _rows,
    "topk_rollout_logprobs": _rows,
    "full_policy_logprobs": _rows,
    "full_rollout_logprobs": _rows,
}
