"""Tools, answer checks and rewards of one's own, named in a config as `module:function`.

    def search(query: str, count: int = 3) -> str:   a tool: the schema comes from this line, the
                                                     description from its docstring
    def check(task, answer) -> float:                an answer check: 0 (wrong) to 1 (right)
    def reward(task, answer, score) -> float:        the reward of the episode, a finite number

Each may be `async def` as well; a plain one runs in a thread of its own, so that other episodes go
on. `task` is a `types.Task`, `answer` the text that the model gave, `score` what the answer check
said. What they raise is the error of the episode (kind "tool" or "reward"), and never a score.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import threading
import types as python_types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_single.envs import user_code

TRIAL_S = 20.0  # of an answer check or reward on the first task, before a run starts
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_JSON_TYPES |= {list: "array", dict: "object", type(None): "null"}
_ARGUMENT = re.compile(r"^\s+(\w+)(?: \(.*\))?: (.+)$")  # a line of "Args:" in a docstring


def is_own(name: str) -> bool:
    """Whether a name of a config is `module:function`."""
    return ":" in name


def load(name: str, field: str) -> Any:
    """What `module:attribute` names.

    Args:
      field: of the config, for messages.

    Raises:
      ValueError: it cannot be imported, or is not there; the message is one sentence.
    """
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ValueError(
            f"{field} is {name!r}, but it cannot be imported: {user_code.place(error)}; expected "
            "'package.module:name' with the package on PYTHONPATH"
        ) from error


def function(name: str, field: str, *arguments: str) -> Callable[..., Any]:
    """A function of one's own that takes these positional arguments.

    Raises:
      ValueError: it cannot be imported, can't be called, or takes others.
    """
    found = load(name, field)
    if not callable(found):
        raise ValueError(f"{field} is {name!r}, which is a {type(found).__name__}, not a function")
    try:
        inspect.signature(found).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{field} is {name!r}; it must take ({', '.join(arguments)}): {error}"
        ) from error
    return found


async def call(own: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Calls a function of either kind; a plain one in a thread that nobody has to wait for."""
    if inspect.iscoroutinefunction(own) or inspect.iscoroutinefunction(type(own).__call__):
        return await own(*arguments, **named)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def tell(outcome: tuple[Any, BaseException | None]) -> None:
        if not done.done():  # the episode may have ended meanwhile
            done.set_result(outcome)

    def work() -> None:
        try:
            outcome = own(*arguments, **named), None
        except BaseException as error:
            outcome = None, error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, outcome)

    threading.Thread(target=work, daemon=True, name="own code").start()
    result, error = await done
    if error is not None:
        raise error
    return await result if inspect.isawaitable(result) else result


class OwnTool:
    """A function as a `tool_env.Tool`; it keeps nothing between calls."""

    def __init__(self, own: Callable[..., Any], schema: Mapping[str, Any]):
        self.name: str = schema["function"]["name"]
        self.schema = schema
        self._own = own

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """What the function gives, as text."""
        found = await call(self._own, **arguments)
        return found if isinstance(found, str) else str(found)

    async def close(self) -> None:
        """Holds nothing."""


def tool(name: str) -> Callable[[], OwnTool]:
    """Makes the tool of an episode from a function, or from its attribute `schema` if it has one.

    Raises:
      ValueError: it cannot be imported or called, or its arguments tell no schema.
    """
    own = load(name, "env.tools")
    if not callable(own):
        raise ValueError(f"env.tools has {name!r}, which is a {type(own).__name__}, not a function")
    schema = getattr(own, "schema", None) or schema_of(own, f"env.tools has {name!r}")
    return lambda: OwnTool(own, schema)


def schema_of(own: Callable[..., Any], where: str) -> dict[str, Any]:
    """The JSON schema of a function, from its annotations and its docstring.

    Raises:
      ValueError: an argument has no annotation or one that JSON has no type for.
    """
    try:
        hints, signature = typing.get_type_hints(own), inspect.signature(own)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"{where}, whose signature can't be read: {error}") from error
    text = inspect.getdoc(own) or ""
    told = dict(found.groups() for found in map(_ARGUMENT.match, text.split("\n")) if found)
    properties, required = {}, []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"{where}, which takes *{parameter.name}; name each argument")
        if parameter.name not in hints:
            raise ValueError(f"{where}, whose argument {parameter.name} has no annotation")
        properties[parameter.name] = _type(hints[parameter.name], f"{where}, {parameter.name}")
        if parameter.name in told:
            properties[parameter.name]["description"] = told[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    described = {
        "name": own.__name__,
        "description": text.partition("\n\n")[0].replace("\n", " "),
        "parameters": {"type": "object", "properties": properties, "required": required},
    }
    return {"type": "function", "function": described}


def _type(hint: Any, where: str) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    if origin in (list, dict):
        return {"type": _JSON_TYPES[origin]}
    if origin is typing.Literal:
        return {"enum": list(typing.get_args(hint))}
    if origin in (typing.Union, python_types.UnionType):
        return {"anyOf": [_type(one, where) for one in typing.get_args(hint)]}
    raise ValueError(
        f"{where} is annotated as {hint!r}; allowed are str, int, float, bool, list, dict, None, "
        "Literal and unions of these"
    )
