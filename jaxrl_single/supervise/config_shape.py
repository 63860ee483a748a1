"""Whether a config has the fields of configs/common.py, with values of their types.

A config file that derives from `common.base()` has them. One that was written by hand, or that
misspells a field of its own, would fail at whatever reads the field first.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import common

# Sections whose fields somebody else defines: the row of the algorithm, the environment.
_OPEN = ("algorithm.", "env.", "model.template_args.")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def problems(config: ConfigDict) -> Iterator[str]:
    """One line per field that is missing, unknown, or of another type, with what is expected."""
    yield from _compare(config.to_dict(), common.base().to_dict(), "")


def _compare(given: Mapping[str, Any], known: Mapping[str, Any], prefix: str) -> Iterator[str]:
    is_open = prefix.startswith(_OPEN)
    for name, default in known.items():
        if name not in given:
            if prefix != "algorithm.":
                yield f"{prefix}{name} is missing; derive the config from configs/common.py"
        elif prefix != "algorithm.":
            yield from _of_value(given[name], default, prefix + name)
    for name in given.keys() - known.keys() if not is_open else ():
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield f"{prefix}{name} is not a field of the config{hint}"


def _of_value(value: Any, default: Any, path: str) -> Iterator[str]:
    if isinstance(default, Mapping):
        if isinstance(value, Mapping):
            yield from _compare(value, default, f"{path}.")
        else:
            yield f"{path} is {value!r}, expected a section with {', '.join(default)}"
        return
    kind = type(default)
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is tuple:
        fits = isinstance(value, (tuple, list))
    if not fits:
        yield f"{path} is {value!r}, expected {_KINDS.get(kind, 'a list of values')}"
