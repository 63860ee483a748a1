"""Parameters by path: nested dicts of arrays <-> {"layers/attention/q_proj": array}."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
