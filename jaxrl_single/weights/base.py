"""The weights' way from the trainer to samplers and evaluations: versions of path-keyed arrays.

A store knows nothing of models: parameters are nested dicts of arrays, and a tensor's name is its
path ("layers/attention/q_proj").
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from jaxrl_single import param_tree

Params = param_tree.Params


class InvalidWeights(RuntimeError):
    """A version must not be used; the message names the place, the tensor and the reason."""


class MissingVersion(InvalidWeights):
    """No such version: never published, or pruned before it could be read."""


class WeightStore(Protocol):
    """Published versions of one run's policy. One writer, any number of readers."""

    def publish(self, version: int, params: Params, *, metadata: dict[str, Any]) -> str:
        """Makes a version visible as a whole or not at all; returns its sha256 (hex).

        Raises:
          ValueError: the version is not above every published one (versions are never reused).
          InvalidWeights: a number is not finite; nothing is published.
          workdir.CannotWrite: the disk is full or the place not writable; nothing of it stays.
        """
        ...

    def latest(self) -> int | None:
        """The highest published version, None before the first."""
        ...

    def versions(self) -> list[int]:
        """All published versions, ascending."""
        ...

    def fetch(self, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns (params as nested dict of numpy arrays, metadata), checked.

        Raises:
          MissingVersion: it is not there (any more).
          InvalidWeights: it is torn, corrupt, of another run, or a number is not finite.
        """
        ...

    def prune(self, keep: int, pinned: Iterable[int]) -> list[int]:
        """Deletes all but the newest `keep` versions and the pinned ones; returns the deleted."""
        ...


def arrays_of(params: Params) -> dict[str, np.ndarray]:
    """{path: array} in host memory, C-contiguous, sorted by path.

    Raises:
      ValueError: a key of the nested dict makes no path.
    """
    # Not ascontiguousarray: it would turn a scalar into a vector.
    return {path: np.asarray(leaf, order="C") for path, leaf in param_tree.flatten(params).items()}


def refuse_not_finite(place: os.PathLike[str] | str, path: str, array: np.ndarray) -> None:
    """Raises InvalidWeights for the first number of a tensor that is NaN or infinite."""
    found = param_tree.not_finite(array)
    if found is not None:
        raise InvalidWeights(
            f"{place}: tensor {path} holds a number that is not finite: {found}; such weights "
            "sample nothing"
        )


def tensor_sha256(array: np.ndarray) -> str:
    """Hex digest of the array's bytes in C order; dtype and shape are not part of it."""
    return hashlib.sha256(bytes_of(array)).hexdigest()


def params_sha256(params: Params) -> str:
    """One hex digest for all parameters, whatever the order of their dicts.

    Covers path, dtype, shape and bytes of each tensor. Equal digests mean equal weights bit for
    bit, in this process or another.
    """
    return combined_sha256({path: describe(array) for path, array in arrays_of(params).items()})


def describe(array: np.ndarray) -> dict[str, Any]:
    """What a manifest says of a tensor: dtype, shape, sha256."""
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "sha256": tensor_sha256(array),
    }


def combined_sha256(tensors: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest of a manifest's tensors, as `params_sha256` has it, without reading their bytes."""
    lines = json.dumps({path: dict(tensors[path]) for path in sorted(tensors)}, sort_keys=True)
    return hashlib.sha256(lines.encode()).hexdigest()


def bytes_of(array: np.ndarray) -> memoryview:
    """A view of the bytes; through uint8 because bfloat16 has no buffer format of its own."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
