"""Parameters by path: nested dicts of arrays <-> {"layers/attention/q_proj": array}."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_BLOCK = 2**20  # numbers looked at together
Params = Mapping[str, Any]  # nested; the leaves are arrays of numpy or jax, or anything else


def flatten(params: Params) -> dict[str, Any]:
    """Nested dict -> {path: leaf}, sorted by path; the leaves stay what they are.

    Raises:
      ValueError: a key is no string, is empty, or holds "/".
    """
    return dict(sorted(_walk(params, ())))


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    params: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return params


def not_finite(array: np.ndarray) -> str | None:
    """The first number of an array that is NaN or infinite, such as "nan at [3, 5]", or None."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        sound = np.isfinite(flat[start : start + _BLOCK])
        if not sound.all():
            place = np.unravel_index(start + int(sound.argmin()), array.shape)
            return f"{float(array[place])} at {[int(index) for index in place]}"
    return None


def _walk(node: Params, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if not isinstance(key, str) or not key or "/" in key:
            raise ValueError(
                f"parameter key {key!r} under {'/'.join(path) or 'the root'!r}: keys are "
                "non-empty strings without '/', because paths name the tensors"
            )
        if isinstance(value, Mapping):
            yield from _walk(value, (*path, key))
        else:
            yield "/".join((*path, key)), value
