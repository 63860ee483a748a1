"""Types of a tool's arguments: what its JSON schema declares, and values that were written as text.

A type is a name of JSON schema. References ($ref) are not followed: they are of ANY type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_single.envs import json_text

ANY = "any"
# What an argument may be; types that are not named are not looked at.
_PYTHON_TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
# Of a value of an enum, by its exact type: a bool is also an int.
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_NAMES |= {dict: "object", type(None): "null"}


def declared(schema: Any) -> tuple[str, ...]:
    """The types that the schema of an argument allows; (ANY,) where it says nothing of them."""
    if not isinstance(schema, Mapping):
        return (ANY,)
    if isinstance(schema.get("type"), str):
        return (schema["type"],)
    if isinstance(schema.get("type"), list):
        return tuple(map(str, schema["type"]))
    found = ()
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found = tuple(name for one in schema[key] for name in declared(one))
    if not found and isinstance(schema.get("enum"), list):
        found = tuple(_NAMES.get(type(value), ANY) for value in schema["enum"])
    return found or (ANY,)


def names(tool: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """The arguments that a tool declares, None where its schema is unknown or names none."""
    for schema in tools:
        found: Any = schema.get("function", schema)
        if found.get("name") == tool:
            for name in ("parameters", "properties"):
                found = found.get(name) if isinstance(found, Mapping) else None
            return tuple(found) if isinstance(found, Mapping) else None
    return None


def of_argument(tool: str, key: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The types of an argument of a tool, of which `tools` are JSON schemas."""
    for schema in tools:
        found: Any = schema.get("function", schema)
        if found.get("name") == tool:
            for name in ("parameters", "properties", key):
                found = found.get(name) if isinstance(found, Mapping) else None
            return declared(found)
    return (ANY,)


def read(text: str, names: Sequence[str]) -> Any:
    """The value of an argument that was written as text: as it is if it may be one, else as JSON.

    Many chat templates write calls of the past as Python prints them, and models learn it: True,
    False and None count where such a value is allowed.
    """
    word = text.strip()
    if "null" in names and word in ("null", "None"):
        return None
    if "string" in names:
        return text
    if "boolean" in names and word in ("True", "False"):
        return word == "True"
    return json_text.parse_or(text, text)


def fits(value: Any, names: Sequence[str]) -> bool:
    """Whether a value is of one of these types."""
    return any(isinstance(value, _PYTHON_TYPES.get(name, object)) for name in names)
