"""The source files that an environment is made of: its modules and what they import. No jax."""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from typing import Any

FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # "package.module:factory"
_OURS = __name__.partition(".")[0]
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")


def of_section(section: Mapping[str, Any]) -> dict[str, pathlib.Path]:
    """Module name -> source file of all that a section of the config names as module:function.

    Besides the modules named, those that they import, as far as they are of the same package or
    not installed: a judge beside the environment belongs to it, numpy does not. Imports that a
    program makes up as it runs, and files of data, are not found.
    """
    found: dict[str, pathlib.Path] = {}
    for name in sorted(_modules(section)):
        _collect(name, name.partition(".")[0], found)
    return found


def _modules(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _modules(item)
    elif isinstance(value, str) and FUNCTION.fullmatch(value):
        yield value.partition(":")[0]


def _collect(name: str, root: str, found: dict[str, pathlib.Path]) -> None:
    """Adds a module, the packages that it lies in, and what they import."""
    if name in found or name.partition(".")[0] == _OURS:
        return
    spec = _spec(name)
    origin = pathlib.Path(spec.origin) if spec and spec.origin else None
    if origin is None or origin.suffix != ".py" or not origin.exists():
        return
    if name.partition(".")[0] != root and _is_installed(origin):
        return
    found[name] = origin
    parent = name.rpartition(".")[0]
    if parent:
        _collect(parent, root, found)
    package = name if spec.submodule_search_locations is not None else parent
    for imported in _imports(origin, package):
        _collect(imported, root, found)


def _imports(path: pathlib.Path, package: str) -> Iterator[str]:
    """Absolute names of what a file imports; of `from a import b` both a and a.b."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _spec(name: str) -> Any:
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    try:
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None  # a name within a module, or a module that is not there


def _is_installed(path: pathlib.Path) -> bool:
    places = [pathlib.Path(sysconfig.get_path(name)).resolve() for name in _LIBRARIES]
    return any(place in path.resolve().parents for place in places)
