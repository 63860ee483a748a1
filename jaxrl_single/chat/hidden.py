"""Messages and tools as a chat template gets them: every text of others hidden. No jax.

What stays visible is what templates ask about: roles, the words of JSON schema, and the tags by
which an assistant's text falls into thought, words and calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_single.chat import shadows, templates
from jaxrl_single.envs import tool_formats

# Each repetition keeps what it took, so the time is linear in the text.
_THOUGHT = re.compile(r"\A\s*+(<think>)?+(?:(?!</think>).)*+(</think>)", re.DOTALL)
_CALL_TAG = re.compile(r"</?(?:tool_call|arg_key|arg_value)>|<\|python_tag\|>")
THOUGHT_END = "</think>"
_NAMED = ("properties", "patternProperties", "$defs", "definitions")  # keys are names of others
_KEYWORD = re.compile(r"[\w$.-]+")
DESCRIBED = "hermes"  # how tools are called that the template does not show
_BEFORE = """# Tools

You may call functions to help with the request. Their JSON schemas, one a line:
<tools>
"""
_AFTER = """
</tools>

To call a function, write its name and arguments as a JSON object between these tags:
<tool_call>
{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}
</tool_call>"""


class Marked(str):
    """A text of which parts are no one else's: control tokens that were sampled or are our own.

    Attributes:
      visible: (start, end) of them, in order; the rest is text, whatever it spells.
    """

    __slots__ = ("visible",)

    def __new__(cls, text: str, visible: Sequence[tuple[int, int]] = ()):
        """Marks `visible` places of a text."""
        self = super().__new__(cls, text)
        self.visible = tuple(visible)
        return self


class Sampled(Marked):
    """What a policy said. A template may leave it out; messages from outside it must show."""

    __slots__ = ()


def thought_tags(text: str) -> list[tuple[int, int]]:
    """Where the tags of the thought at the beginning of an assistant's text are."""
    thought = _THOUGHT.match(text)
    return [thought.span(group) for group in (1, 2) if thought[group]] if thought else []


def parsed(text: str, tool_format: str | None) -> Marked:
    """An assistant's text from outside: tags of its thought and of its calls are visible."""
    if isinstance(text, Marked):
        return text
    found = thought_tags(text)
    if tool_format is not None:
        # A tag within an argument is a part of it; GLM's arguments stand between tags of their own.
        for start, end in tool_formats.get(tool_format).parse(text).spans:
            for tag in _CALL_TAG.finditer(text, start, end):
                frames = tag.start() == start or tag.end() == end
                if frames or (tool_format == "glm" and "arg_" in tag[0]):
                    found.append(tag.span())
    return Marked(text, found)


def messages(
    given: Sequence[Mapping[str, Any]], hider: shadows.Shadows, tool_format: str | None
) -> list[dict[str, Any]]:
    """Normalised messages, hidden; traces are named content:NUMBER and calls:NUMBER."""
    return [_message(number, one, hider, tool_format) for number, one in enumerate(given)]


def _message(
    number: int, message: Mapping[str, Any], hider: shadows.Shadows, tool_format: str | None
) -> dict[str, Any]:
    said = message["role"] == "assistant"
    kind = shadows.SAID if said else shadows.CONTENT
    found = {
        # Templates look for the call that is answered: its id has to be the same text.
        key: _hide_all(value, shadows.SAID if key == "tool_call_id" else kind, hider)
        for key, value in message.items()
        if key not in ("role", "content", "tool_calls")
    }
    content = message["content"]
    content = parsed(content, tool_format) if said else content
    found["role"] = message["role"]
    found["content"] = _content(content, kind, f"content:{number}", hider)
    if "tool_calls" in message:
        found["tool_calls"] = [_call(one, number, hider) for one in message["tool_calls"]]
    return found


def _content(text: str, kind: int, trace: str, hider: shadows.Shadows) -> str:
    """The text, visible where it is `Marked`; the trace lies in what is said after the thought."""
    visible = getattr(text, "visible", ())
    found, end = [], 0
    ends = [stop for start, stop in visible if text[start:stop] == THOUGHT_END]
    for start, stop in (*visible, (len(text), len(text))):
        piece = text[end:start]
        tell = trace if piece.strip() and end >= max(ends, default=0) else ""
        found += [hider.hide(piece, kind, tell), text[start:stop]]
        trace, end = ("" if tell else trace), stop
    return "".join(found)


def _call(call: Mapping[str, Any], number: int, hider: shadows.Shadows) -> dict[str, Any]:
    function = call["function"]
    shown = {
        "name": hider.hide(function["name"], shadows.SAID, f"calls:{number}"),
        "arguments": _hide_all(function["arguments"], shadows.SAID, hider),
    }
    outer = {key: _hide_all(value, shadows.SAID, hider) for key, value in call.items()}
    return templates.Json(outer | {"type": "function", "function": templates.Json(shown)})


def _hide_all(value: Any, kind: int, hider: shadows.Shadows) -> Any:
    """Every text in a JSON value, names of fields too."""
    if isinstance(value, str):
        return hider.hide(value, kind)
    if isinstance(value, Mapping):
        return templates.Json(
            (_hide_key(str(key), kind, hider), _hide_all(one, kind, hider))
            for key, one in value.items()
        )
    if isinstance(value, list | tuple):
        return templates.JsonList(_hide_all(one, kind, hider) for one in value)
    return value


def _hide_key(key: str, kind: int, hider: shadows.Shadows) -> str:
    """A name that is one word stays visible: templates ask for arguments by name."""
    return key if _KEYWORD.fullmatch(key) else hider.hide(key, kind)


def tools(given: Sequence[Mapping[str, Any]], hider: shadows.Shadows) -> list[Any] | None:
    """JSON schemas, hidden; traces are named "tools"."""
    found = templates.JsonList(_schema(tool, hider) for tool in given)
    for tool, original in zip(found, given, strict=True):
        name = original.get("function", original)["name"]
        tool.get("function", tool)["name"] = hider.hide(name, shadows.CONTENT, "tools")
    return found or None


def _schema(value: Any, hider: shadows.Shadows, *, names: bool = False) -> Any:
    if isinstance(value, str):
        return hider.hide(value, shadows.CONTENT)
    if isinstance(value, list | tuple):
        return templates.JsonList(_schema(one, hider) for one in value)
    if not isinstance(value, Mapping):
        return value
    found = templates.Json()
    for key, one in value.items():
        is_word = not names and _KEYWORD.fullmatch(key)
        plain = is_word and key == "type" and _names_types(one)
        shown = key if is_word else hider.hide(key, shadows.CONTENT)
        found[shown] = one if plain else _schema(one, hider, names=not names and key in _NAMED)
    return found


def _names_types(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, str) and _names_types(one) for one in value)
    return isinstance(value, str) and _KEYWORD.fullmatch(value) is not None


def described(
    given: Sequence[Mapping[str, Any]], schemas: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The messages with the tools in the system message, for a template that shows no tools."""
    found = [dict(message) for message in given]
    if not found or found[0]["role"] != "system":
        found.insert(0, {"role": "system", "content": ""})
    system = found[0]["content"]
    before = f"\n\n{_BEFORE}" if system else _BEFORE
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    first, last = len(system), len(system) + len(before) + len(lines)
    found[0]["content"] = Marked(
        f"{system}{before}{lines}{_AFTER}",
        [(first, first + len(before)), (last, last + len(_AFTER))],
    )
    return found


def spelled(
    given: Sequence[Mapping[str, Any]], numbers: set[int], tool_format: str | None
) -> list[dict[str, Any]]:
    """The messages with these ones' calls as text, for a template that shows no calls."""
    style = tool_formats.get(tool_format or DESCRIBED)
    found = []
    for number, message in enumerate(given):
        if number in numbers:
            message = {key: value for key, value in message.items() if key != "tool_calls"} | {
                "content": _spelled(parsed(message["content"], tool_format), style, given[number])
            }
        found.append(dict(message))
    return found


def _spelled(text: Marked, style: tool_formats.Format, message: Mapping[str, Any]) -> Marked:
    written, visible = str(text), list(text.visible)
    for call in message["tool_calls"]:
        function = call["function"]
        shown = style.render(tool_formats.Call(function["name"], function["arguments"]))
        written += "\n" if written else ""
        tags = [
            tag for tag in _CALL_TAG.finditer(shown) if tag.end() == len(shown) or not tag.start()
        ]
        visible += [(len(written) + tag.start(), len(written) + tag.end()) for tag in tags]
        written += shown
    return Marked(written, visible)


def as_text_arguments(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of calls as JSON in a text, as some templates want them."""
    found = []
    for message in given:
        message = dict(message)
        if "tool_calls" in message:
            message["tool_calls"] = [_as_text(call) for call in message["tool_calls"]]
        found.append(message)
    return found


def _as_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def answers_as_user(given: Sequence[Mapping[str, Any]], numbers: set[int]) -> list[dict[str, Any]]:
    """The messages with these answers of tools said by the user, for a template without tools.

    Answers that follow each other are one message: such templates often want turns to alternate.
    """
    found: list[dict[str, Any]] = []
    for number, message in enumerate(given):
        if number in numbers:
            content = f"<tool_response>\n{message['content']}\n</tool_response>"
            if number - 1 in numbers:
                found[-1]["content"] += f"\n{content}"
                continue
            message = {"role": "user", "content": content}
        found.append(dict(message))
    return found
