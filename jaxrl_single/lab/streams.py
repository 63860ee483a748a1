"""Records -> the arrays that algorithms read: all tokens of the file as one stream [T].

Only what the algorithm reads is made, besides what every algorithm gets. Tokens and trajectories
are padded to powers of 2, so that files of similar size share their compiled programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single.algorithms import arrays as arrays_lib
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.algorithms import update
from jaxrl_single.lab import requirements
from jaxrl_single.lab.records import Record

LEAST_TOKENS, LEAST_TRAJECTORIES = 32, 8


def num_tasks(algorithm: row_lib.Algorithm, records: Sequence[Record]) -> int:
    """How many numbers the tasks of the file may take, or the states where these are counted."""
    if "state_key" in algorithm.reads:
        found = {key for record in records for key in record["state_key"]}
    else:
        found = {record["task_id"] for record in records}
    return _padded_size(len(found), LEAST_TRAJECTORIES)


def advantage_arrays(
    algorithm: row_lib.Algorithm, records: Sequence[Record]
) -> arrays_lib.AdvantageArrays:
    """The whole file as one batch.

    Args:
      algorithm: the row; `requirements.check` has passed it.
      records: in the order of the file.
    """
    reads, mask = algorithm.reads, _tokens(records, "action_mask")
    policy, rollout = _tokens(records, "policy_logprobs"), _tokens(records, "rollout_logprobs")
    optional: dict[str, Any] = {}
    if "values" in reads:
        optional["values"] = _tokens(records, "values")
    if "prompt_value" in reads:
        optional["prompt_value"] = _facts(records, "prompt_value")
    if "state_key" in reads:
        optional["state_key"] = _state_keys(records)
    if "gold_logprobs" in reads:
        optional |= _gold(records)
    if "parent" in reads:
        optional |= _forks(records)
    return arrays_lib.AdvantageArrays(
        rewards=_tokens(records, "rewards"),
        action_mask=mask,
        trajectory_index=_trajectory_index(records),
        reward=_facts(records, "reward"),
        group=_groups(records),
        valid=_listed([True] * len(records), bool),
        task=_listed(_numbered([record["task_id"] for record in records]), np.int32),
        bootstrap_values=_listed([_bootstrap(record) for record in records]),
        turn_ids=_joined([record.turns for record in records], np.int32),
        token_index=_joined([np.arange(record.length) for record in records], np.int32),
        log_ratio=jnp.where(mask, policy - rollout, 0.0),
        **optional,
    )


def policy_arrays(
    algorithm: row_lib.Algorithm, records: Sequence[Record], advantages: jax.Array
) -> arrays_lib.PolicyArrays:
    """The same batch for the loss, with its advantages [T]; all actions of the file count."""
    reads, mask = algorithm.reads, _tokens(records, "action_mask")
    index = _trajectory_index(records)
    valid = _listed([True] * len(records), bool)
    lengths, denominator = update.reduction_inputs(algorithm, mask, index, valid.size)
    optional: dict[str, Any] = {
        name: _rows(records, name) for name in requirements.ROWS if name in reads
    }
    if "proximal_logprobs" in reads or "engine_log_ratio" in reads:
        optional["proximal_logprobs"] = _joined([_proximal(record) for record in records])
    if "ref_logprobs" in reads:
        optional["ref_logprobs"] = _tokens(records, "ref_logprobs")
    for name in ("preference", "prompt_value"):
        if name in reads:
            optional[name] = _facts(records, name)
    return arrays_lib.PolicyArrays(
        policy_logprobs=_tokens(records, "policy_logprobs"),
        policy_entropies=_joined([_or_zeros(record, "policy_entropies") for record in records]),
        rollout_logprobs=_tokens(records, "rollout_logprobs"),
        entropies=_joined([_or_zeros(record, "entropies") for record in records]),
        advantages=advantages,
        loss_mask=mask,
        trajectory_index=index,
        trajectory_lengths=lengths,
        denominator=denominator,
        reward=_facts(records, "reward"),
        group=_groups(records),
        valid=valid,
        turn_ids=_joined([record.turns for record in records], np.int32),
        **optional,
    )


def split(array: np.ndarray, records: Sequence[Record]) -> list[np.ndarray]:
    """An array of the stream, cut into the trajectories, without the padding."""
    return np.split(array, np.cumsum([record.length for record in records]))[:-1]


def _groups(records: Sequence[Record]) -> jax.Array:
    numbers = _numbered([requirements.group_of(record) for record in records])
    return _listed(numbers, np.int32, fill=-1)


def _tokens(records: Sequence[Record], name: str) -> jax.Array:
    return _joined([record[name] for record in records])


def _joined(arrays: list[np.ndarray], dtype: Any = None, *, fill: Any = 0) -> jax.Array:
    """Arrays [T, ...] of the trajectories one after the other, and padding."""
    return _padded(np.concatenate(arrays), LEAST_TOKENS, dtype, fill)


def _facts(records: Sequence[Record], name: str) -> jax.Array:
    return _listed([record[name] for record in records])


def _listed(values: list[Any], dtype: Any = None, *, fill: Any = 0) -> jax.Array:
    """A number for each trajectory, and padding."""
    return _padded(np.array(values), LEAST_TRAJECTORIES, dtype, fill)


def _padded(array: np.ndarray, least: int, dtype: Any, fill: Any) -> jax.Array:
    missing = _padded_size(len(array), least) - len(array)
    filling = np.full((missing, *array.shape[1:]), fill, array.dtype)
    return jnp.asarray(np.concatenate([array, filling]), dtype)


def _padded_size(size: int, least: int) -> int:
    return max(least, 1 << (size - 1).bit_length())


def _numbered(keys: list[Any]) -> list[int]:
    """Equal keys by equal numbers 0, 1, ... in the order of their first appearance."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _trajectory_index(records: Sequence[Record]) -> jax.Array:
    owners = [np.full(record.length, number) for number, record in enumerate(records)]
    return _joined(owners, np.int32, fill=-1)


def _bootstrap(record: Record) -> float:
    terminated = "terminated" not in record or record["terminated"]
    return 0.0 if terminated or "bootstrap_value" not in record else record["bootstrap_value"]


def _or_zeros(record: Record, name: str) -> np.ndarray:
    return record[name] if name in record else np.zeros(record.length)


def _proximal(record: Record) -> np.ndarray:
    name = "proximal_logprobs" if "proximal_logprobs" in record else "policy_logprobs"
    return record[name]


def _rows(records: Sequence[Record], name: str) -> jax.Array:
    width = max(record[name].shape[1] for record in records)
    # A trajectory without actions has rows of no length.
    return _joined(
        [
            record[name] if record.num_actions else np.full((record.length, width), np.nan)
            for record in records
        ]
    )


def _state_keys(records: Sequence[Record]) -> jax.Array:
    numbers: dict[str, int] = {}
    found = []
    for record in records:
        of_turn = [numbers.setdefault(key, len(numbers)) for key in record["state_key"]]
        on_actions = np.where(record["action_mask"], record.turns, 0)
        found.append(np.array(of_turn or [0])[on_actions])
    return _joined(found, np.int32)


def _gold(records: Sequence[Record]) -> dict[str, jax.Array]:
    counts = [len(record["gold_logprobs"]) for record in records]
    rows = np.zeros((len(records), _padded_size(max(counts) + 1, LEAST_TRAJECTORIES)))
    for row, record in zip(rows, records, strict=True):
        row[: len(record["gold_logprobs"])] = record["gold_logprobs"]
    return {"gold_logprobs": _listed(rows), "num_boundaries": _listed(counts, np.int32)}


def _forks(records: Sequence[Record]) -> dict[str, jax.Array]:
    number_of = {record["id"]: number for number, record in enumerate(records)}
    parents = [
        number_of[record["parent_id"]] if "parent_id" in record else -1 for record in records
    ]
    forks = [record["fork_index"] if "parent_id" in record else 0 for record in records]
    return {
        "parent": _listed(parents, np.int32, fill=-1),
        "fork_index": _listed(forks, np.int32),
    }
