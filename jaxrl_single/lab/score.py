"""Applies an algorithm to recorded trajectories: advantages, weights and coefficients per token."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_single import atomic
from jaxrl_single.algorithms import arrays as arrays_lib
from jaxrl_single.algorithms import diagnostics, update
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.lab import records as records_lib
from jaxrl_single.lab import requirements, streams
from jaxrl_single.lab.records import BadRecord, Record

# Output field by the model output that the loss is differentiated by.
_COEFFICIENTS = {
    "policy_logprobs": "coefficients",
    "aux_policy_logprobs": "aux_coefficients",
    "topk_policy_logprobs": "topk_coefficients",
    "full_policy_logprobs": "full_coefficients",
}
# Metrics of what a file may lack.
_ENTROPY_METRICS = {
    "entropies": ("keep/entropy_kept", "keep/entropy_masked", "policy/sampler_entropy"),
    "policy_entropies": ("policy/entropy",),
}


@dataclasses.dataclass(frozen=True)
class Scores:
    """What an algorithm makes of a batch.

    Attributes:
      per_token: [T] over the tokens of all records in order, 0 where the mask is 0: "advantages";
        "weights", what multiplied advantage x grad log pi; "coefficients", minus the gradient of
        the loss by policy_logprobs; and [T, width] "aux_coefficients", "topk_coefficients" and
        "full_coefficients" where the algorithm reads such rows.
      loss: of the whole batch.
      metrics: by name; NaN where there was nothing to measure.
    """

    per_token: Mapping[str, np.ndarray]
    loss: float
    metrics: Mapping[str, float]


def score(algorithm: row_lib.Algorithm, records: Sequence[Record]) -> Scores:
    """Scores all records as one batch, stateful parts in the order of the file.

    Raises:
      records.BadRecord: a line lacks what the algorithm reads, or gives coefficients that are not
        finite.
    """
    requirements.check(algorithm, records)
    state = update.init_state(algorithm, num_tasks=streams.num_tasks(algorithm, records))
    found = _advantages(algorithm, streams.advantage_arrays(algorithm, records), state)
    arrays = streams.policy_arrays(algorithm, records, found.advantages)
    per_token, loss, metrics = jax.device_get(_coefficients(algorithm, arrays, found.state))
    per_token = {"advantages": np.asarray(found.advantages)} | per_token
    per_token = {name: _whole(array, records) for name, array in per_token.items()}
    _check_finite(per_token, records)
    for field, names in _ENTROPY_METRICS.items():
        if not all(field in record for record in records):
            metrics = {name: value for name, value in metrics.items() if name not in names}
    return Scores(per_token, float(loss), {name: float(value) for name, value in metrics.items()})


_advantages = jax.jit(update.advantages, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _coefficients(
    algorithm: row_lib.Algorithm, arrays: arrays_lib.PolicyArrays, state: update.State
) -> tuple[dict[str, jax.Array], jax.Array, dict[str, jax.Array]]:
    """Weights and coefficients per token by their output fields, the loss, the metrics."""
    coefficients, loss, aux = update.score_coefficients(algorithm, arrays, state)
    metrics = diagnostics.means(aux.metrics) | diagnostics.log_ratio_quantiles(
        arrays.policy_logprobs, arrays.rollout_logprobs, arrays.loss_mask
    )
    named = {_COEFFICIENTS[name]: x for name, x in coefficients.items() if name in _COEFFICIENTS}
    return {"weights": aux.weights} | named, loss, metrics


def lines(scores: Scores, records: Sequence[Record]) -> Iterator[str]:
    """The output as JSON lines: one for each record, then the summary."""
    split = {name: streams.split(array, records) for name, array in scores.per_token.items()}
    for number, record in enumerate(records):
        line = {"id": record["id"]} | {name: split[name][number].tolist() for name in split}
        yield json.dumps(line, allow_nan=False)
    yield json.dumps({"summary": summary(scores)}, allow_nan=False)


def summary(scores: Scores) -> dict[str, float | None]:
    """Loss and metrics as JSON values: null where there was nothing to measure."""
    metrics = {name: x if math.isfinite(x) else None for name, x in scores.metrics.items()}
    return {"loss": scores.loss, **metrics}


def score_file(
    algorithm: row_lib.Algorithm, path: os.PathLike[str] | str, output: os.PathLike[str] | str
) -> None:
    """Reads records, scores them and writes `lines`; writes nothing if a line is wrong.

    Raises:
      records.BadRecord: see `score`; the message begins with the number of the line.
      OSError: a file cannot be read or written.
    """
    found = records_lib.read(path)
    text = [line + "\n" for line in lines(score(algorithm, found), found)]
    with atomic.replacing(output) as writing:
        writing.write_text("".join(text), encoding="utf-8")


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Overrides for `table.get` from texts KEY=VALUE; numbers and booleans become such.

    Raises:
      ValueError: a text without "=".
    """
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ValueError(f"--set={setting}: expected KEY=VALUE, such as keep_rule.low=0.3")
        found[key.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _whole(array: np.ndarray, records: Sequence[Record]) -> np.ndarray:
    """Without the padding of the stream, and with 0 for -0."""
    return array[: sum(record.length for record in records)] + 0.0


def _check_finite(per_token: Mapping[str, np.ndarray], records: Sequence[Record]) -> None:
    for name, array in per_token.items():
        for record, part in zip(records, streams.split(array, records), strict=True):
            bad = np.argwhere(~np.isfinite(part))
            if len(bad):
                raise BadRecord(
                    record.line, f"{name}{bad[0].tolist()} came out as {part[tuple(bad[0])]}"
                )
