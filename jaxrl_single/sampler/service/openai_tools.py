"""Calls of tools: which a request allows, and those in an answer, as OpenAI writes them.

How the model writes them is its own business (envs/tool_formats.py). What cannot be read as a call
stays text. A stream holds back whatever may be the beginning of a call, and tells the calls in its
last chunk.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Sequence
from typing import Any

from jaxrl_single.envs import tool_formats
from jaxrl_single.sampler.service import fields as fields_lib
from jaxrl_single.sampler.service import http_errors


@dataclasses.dataclass(frozen=True)
class Tools:
    """What an answer may call.

    Attributes:
      tool_format: how the model writes calls.
      schemas: of the tools.
      parallel: whether it may be several at once; else the first is taken.
    """

    tool_format: tool_formats.Format
    schemas: tuple[dict[str, Any], ...]
    parallel: bool


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer's text and calls.

    Attributes:
      text: all of it if there are no calls, else what comes before them.
      calls: entries of `tool_calls`.
    """

    text: str
    calls: tuple[dict[str, Any], ...] = ()


def take_schemas(found: fields_lib.Fields) -> list[dict[str, Any]]:
    """The fields tools and tool_choice: what the answer may call, often nothing.

    Raises:
      ApiError: 400, a tool is malformed, or the choice is one that cannot be forced.
    """
    tools = found.take("tools") or []
    if not isinstance(tools, list):
        raise http_errors.wrong("tools must be a list of objects", "tools")
    for number, tool in enumerate(tools):
        _check_schema(tool, f"tools[{number}]")
    choice = found.take("tool_choice")
    if choice not in (None, "auto", "none"):
        raise http_errors.wrong(
            f"tool_choice = {choice!r:.80} is not supported; allowed are 'auto' and 'none'",
            "tool_choice",
        )
    return [] if choice == "none" else tools


def _check_schema(tool: Any, where: str) -> None:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise http_errors.wrong(
            f'{where} must be {{"type": "function", "function": {{"name": ...}}}}', "tools"
        )
    if not isinstance(function.get("parameters") or {}, dict):
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


def read(tools: Tools | None, text: str, finish_reason: str) -> Answer:
    """Looks for calls in a whole answer; one that was cut has none."""
    if tools is None or finish_reason != "stop":
        return Answer(text)
    found = tools.tool_format.parse(text, tools.schemas)
    if not found.calls:
        return Answer(text)
    calls = found.calls if tools.parallel else found.calls[:1]
    return Answer(text[: found.start], tuple(_entry(call) for call in calls))


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
