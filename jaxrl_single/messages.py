"""Messages and tools as they come from outside, in the one form that everything else reads.

    {"role": "user", "content": [{"type": "text", "text": "Hi"}]}       -> content "Hi"
    {"role": "assistant", "content": null, "tool_calls": [{"function":
        {"name": "add", "arguments": "{\\"a\\": 1}"}}]}                     -> content "", {"a": 1}
    {"role": "developer", ...}, {"role": "function", ...}               -> "system", "tool"

The endpoint, run.generate, warm start and episodes all come through here. No jax.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
_OTHER_NAMES = {"developer": "system", "function": "tool"}

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


def normalise(messages: Any) -> list[dict[str, Any]]:
    """Messages with a role of ROLES, a text as content, and arguments of calls as objects.

    Values that are null are left out. Arguments that are no JSON stay the text that they are.

    Raises:
      ValueError: it names the message and says what is allowed.
    """
    if not isinstance(messages, list | tuple):
        raise ValueError("messages: expected a list of objects with role and content")
    return [_message(f"messages[{number}]", one) for number, one in enumerate(messages)]


def check_tools(tools: Any) -> list[dict[str, Any]]:
    """The JSON schemas of tools, each a function with a name; [] for None.

    Raises:
      ValueError: it names the tool and says what it must be.
    """
    if tools is None:
        return []
    if not isinstance(tools, list | tuple):
        raise ValueError("tools: expected a list of objects")
    for number, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ValueError(
                f'tools[{number}] must be {{"type": "function", "function": {{"name": ...}}}}'
            )
        if not isinstance(function.get("parameters"), Mapping | None):
            raise ValueError(f"tools[{number}]: parameters must be a JSON schema, an object")
    return list(tools)


def _message(where: str, message: Any) -> dict[str, Any]:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str):
        raise ValueError(f"{where} must be an object with a role and content")
    role = _OTHER_NAMES.get(role, role)
    if role not in ROLES:
        allowed = ", ".join(sorted((*ROLES, *_OTHER_NAMES)))
        raise ValueError(f"{where}: role is {role!r}, allowed are {allowed}")
    found = {name: value for name, value in message.items() if value is not None}
    calls = found.pop("tool_calls", None) or _old_call(found)
    if role in ("system", "user") and "content" not in message:
        raise ValueError(f"{where}: a message of role {role!r} needs content")
    found |= {"role": role, "content": _content(where, found.get("content", ""))}
    if calls:
        if role != "assistant":
            raise ValueError(f"{where}: only the assistant calls tools, this is role {role!r}")
        if not isinstance(calls, list | tuple):
            raise ValueError(f"{where}: tool_calls must be a list")
        found["tool_calls"] = [_call(where, call) for call in calls]
    return found


def _old_call(message: dict[str, Any]) -> list[Any]:
    """The call of `function_call`, which `tool_calls` replaced."""
    call = message.pop("function_call", None)
    return [{"function": call}] if call else []


def _content(where: str, content: Any) -> str:
    if isinstance(content, list | tuple):
        return "".join(_part(where, part) for part in content)
    if not isinstance(content, str):
        raise ValueError(f"{where}: content must be a text or a list of texts")
    return content


def _part(where: str, part: Any) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        raise ValueError(f"{where}: content may hold parts of type 'text' only")
    if not isinstance(part.get("text"), str):
        raise ValueError(f"{where}: a part has no text")
    return part["text"]


def _call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: a tool call has no function with a name")
    outer = {key: value for key, value in call.items() if key in ("id", "index")}
    arguments = _arguments(where, function.get("arguments"))
    return outer | {"type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(where: str, arguments: Any) -> Any:
    """An object; or a text that is none, or would lose something as one: it is shown as it is."""
    if isinstance(arguments, str):
        text = arguments
        try:
            arguments = json.loads(text, object_pairs_hook=_unique) if text.strip() else {}
            json.dumps(arguments, allow_nan=False)
        except (ValueError, RecursionError):
            return text
        if not isinstance(arguments, dict | None):
            return text
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{where}: the arguments of a tool call must be a JSON object")
    arguments = dict(arguments)
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{where}: the arguments of a tool call are not JSON: {error}") from error
    return arguments


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def leading_system(messages: Sequence[Message]) -> str | None:
    """The content of a system message at the beginning, None if there is none."""
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else None
