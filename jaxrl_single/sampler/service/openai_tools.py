"""Calls of tools: which a request allows, and those in an answer, as OpenAI writes them.

How the model writes them is its own business (envs/tool_formats.py). What cannot be read as a call
stays text. A stream holds back whatever may be the beginning of a call, and tells the calls in its
last chunk. Where a call is required, the tokens of its beginning are taken instead of draws; the
rest is the model's own, and may turn out to be no call.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

from jaxrl_single.envs import tool_formats, tool_reading
from jaxrl_single.sampler.service import fields as fields_lib
from jaxrl_single.sampler.service import http_errors

_CHOICES = ("auto", "none", "required")
_NAME = re.compile(r"[\w.:/-]+")  # nothing that a tokenizer may take for a control token


@dataclasses.dataclass(frozen=True)
class Tools:
    """What an answer may call.

    Attributes:
      tool_format: how the model writes calls.
      schemas: of the tools.
      parallel: whether it may be several at once; else the first is taken.
      thinking: the prompt ends within a thought, which the answer goes on with.
    """

    tool_format: tool_formats.Format
    schemas: tuple[dict[str, Any], ...]
    parallel: bool
    thinking: bool = False


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer's text and calls.

    Attributes:
      text: all of it if there are no calls, else what comes before them, and a malformed call
        after them with all that follows it.
      calls: entries of `tool_calls`.
    """

    text: str
    calls: tuple[dict[str, Any], ...] = ()


def take_schemas(found: fields_lib.Fields) -> list[dict[str, Any]]:
    """The fields tools and tool_choice: what the answer may call, often nothing.

    Raises:
      ApiError: 400, a tool is malformed, or the choice is none of OpenAI's.
    """
    tools = found.take("tools")
    tools = [] if tools is None else tools
    if not isinstance(tools, list):
        raise http_errors.wrong("tools must be a list of objects", "tools")
    for number, tool in enumerate(tools):
        _check_schema(tool, f"tools[{number}]")
    choice = found.take("tool_choice")
    if choice not in (None, *_CHOICES) and _chosen(choice) is None:
        raise http_errors.wrong(
            f"tool_choice = {choice!r:.80} is not supported; allowed are {', '.join(_CHOICES)} and "
            '{"type": "function", "function": {"name": ...}}',
            "tool_choice",
        )
    return [] if choice == "none" else tools


def beginning(choice: Any, tools: Tools | None, schemas: Sequence[dict[str, Any]]) -> str:
    """What an answer must begin with, "" if nothing.

    Args:
      choice: the field tool_choice, as `take_schemas` lets it pass.
      tools, schemas: what the answer may call.

    Raises:
      ApiError: 400, there is no such tool, or no way to write a call.
    """
    name = _chosen(choice)
    if choice != "required" and name is None:
        return ""
    names = [schema.get("function", schema)["name"] for schema in schemas]
    if not names or name not in (None, *names):
        raise http_errors.wrong(
            f"tool_choice = {choice!r:.80} needs a tool of that name; tools are {names!r:.200}",
            "tool_choice",
        )
    if tools is None:
        raise http_errors.wrong(
            f"tool_choice = {choice!r:.80}: the chat template of this model shows no way to call "
            "tools; the server's setting tool_format can name one",
            "tool_choice",
        )
    name = names[0] if len(names) == 1 else name
    if name is not None and not _NAME.fullmatch(name):
        raise http_errors.wrong(
            f"tool_choice: {name!r:.80} can't be forced; a name has letters, digits and _ - . : /",
            "tool_choice",
        )
    return tools.tool_format.beginning(name)


def _chosen(choice: Any) -> str | None:
    """The name of the function that the answer has to call, None if the choice names none."""
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return None
    name = choice.get("function", choice)
    name = name.get("name") if isinstance(name, dict) else None
    return name if isinstance(name, str) else None


def _check_schema(tool: Any, where: str) -> None:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise http_errors.wrong(
            f'{where} must be {{"type": "function", "function": {{"name": ...}}}}', "tools"
        )
    if not isinstance(function.get("parameters"), dict | None):
        raise http_errors.wrong(f"{where}: parameters must be a JSON schema, an object", "tools")


def of_call(
    found: fields_lib.Fields,
    schemas: Sequence[dict[str, Any]],
    tool_format: tool_formats.Format | None,
) -> Tools | None:
    """How to read the answers; None where nothing may be called or the format is not known."""
    parallel = found.boolean("parallel_tool_calls", True)
    if not schemas or tool_format is None:
        return None
    return Tools(tool_format, tuple(schemas), parallel)


async def read(tools: Tools | None, text: str, finish_reason: str) -> Answer:
    """Looks for calls in a whole answer; one that was cut has none."""
    if tools is None or finish_reason != "stop":
        return Answer(text)
    found = await tool_reading.parse(
        tools.tool_format, text, tools.schemas, thinking=tools.thinking
    )
    if not found.calls:
        return Answer(text)
    calls = found.calls if tools.parallel else found.calls[:1]
    rest = "" if found.rest is None else text[found.rest :]
    return Answer(text[: found.start] + rest, tuple(_entry(call) for call in calls))


def message(answer: Answer) -> dict[str, Any]:
    """The message of a choice."""
    if not answer.calls:
        return {"role": "assistant", "content": answer.text, "refusal": None}
    content = answer.text if answer.text.strip() else None
    calls = list(answer.calls)
    return {"role": "assistant", "content": content, "refusal": None, "tool_calls": calls}


def delta(answer: Answer) -> dict[str, Any]:
    """What the last chunk of a stream says of the calls."""
    numbered = [{"index": number} | call for number, call in enumerate(answer.calls)]
    return {"tool_calls": numbered} if numbered else {}


def finish(answer: Answer) -> dict[str, Any]:
    """The field that calls change."""
    return {"finish_reason": "tool_calls"} if answer.calls else {}


def _entry(call: tool_formats.Call) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
