"""The evidence of a train step: what it read and what it made of each token. No jax, no pickle.

WORKDIR/samples/STEP.safetensors holds typed arrays and a JSON header. The tokens of the batch's
trajectories follow one another, in the order in which the step took them, without padding.
docs/evidence.md says what each array is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from jaxrl_single import workdir

_FORMAT = "evidence/1"  # raise it when the header or the arrays change their meaning
_NAME = re.compile(r"(\d+)\.safetensors")


PER_TRAJECTORY = ("reward", "bootstrap_values")  # arrays [N]; all others are per token


class BadEvidence(ValueError):
    """A file is torn or of another format; the message names it."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a step was.

    Attributes:
      run_id: of the run.
      step: of RL, from 1.
      policy_version: the published version whose weights the step began with.
      algorithm: name of the row.
      critic_only: the policy was not updated, so the arrays of its update are absent.
      trajectories: of the batch: {"key", "task_id", "group_id", "bootstrap"} each; `bootstrap`:
        the value after the last token stood for the rest.
    """

    run_id: str
    step: int
    policy_version: int
    algorithm: str
    critic_only: bool
    trajectories: tuple[dict[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A step with its arrays: per token [tokens], and PER_TRAJECTORY [N]."""

    facts: Facts
    arrays: Mapping[str, np.ndarray]

    def of(self, number: int) -> dict[str, np.ndarray]:
        """The arrays per token of one trajectory of the batch."""
        there = self.arrays["trajectory_index"] == number
        return {
            name: array[there] for name, array in self.arrays.items() if name not in PER_TRAJECTORY
        }


def write(directory: pathlib.Path, evidence: Evidence) -> pathlib.Path:
    """Writes STEP.safetensors, whole or not at all; one of this step is replaced.

    Raises:
      workdir.CannotWrite: the disk is full or the directory not writable.
    """
    header = json.dumps(workdir.plain(dataclasses.asdict(evidence.facts)), allow_nan=False)
    metadata = {"format": _FORMAT, "facts": header}
    arrays = {name: np.ascontiguousarray(array) for name, array in evidence.arrays.items()}
    path = directory / f"{evidence.facts.step}.safetensors"
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise workdir.CannotWrite(directory, error) from error
    workdir.write_bytes(path, safetensors.numpy.save(arrays, metadata))
    return path


def files(directory: os.PathLike[str] | str) -> dict[int, pathlib.Path]:
    """Path by step, ascending."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return {}
    found = {int(match[1]): match[0] for name in names if (match := _NAME.fullmatch(name))}
    return {step: pathlib.Path(directory) / found[step] for step in sorted(found)}


def read_facts(path: pathlib.Path) -> Facts:
    """The header alone.

    Raises:
      BadEvidence: see there.
      OSError: the file cannot be read.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return _facts(file.metadata() or {})
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadEvidence(f"{path} is torn, or no evidence of a step ({error})") from error


def read(path: pathlib.Path) -> Evidence:
    """All of it; raises as `read_facts`."""
    facts = read_facts(path)
    try:
        return Evidence(facts, safetensors.numpy.load_file(path))
    except safetensors.SafetensorError as error:
        raise BadEvidence(f"{path} is torn ({error})") from error


def _facts(metadata: Mapping[str, str]) -> Facts:
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"format {metadata.get('format')!r}, expected {_FORMAT!r}")
    facts = json.loads(metadata["facts"])
    return Facts(**facts | {"trajectories": tuple(facts["trajectories"])})
