"""How models write calls of tools: text -> calls, and a call -> text. No jax, no tokenizer.

    hermes       <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>   Qwen 2.5 and 3
    qwen3_coder  <tool_call><function=add><parameter=a>1</parameter></function></tool_call>
    llama3       {"name": "add", "parameters": {"a": 1}}, maybe after <|python_tag|>
    glm          <tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>
    react        Action: add, and on the next line Action Input: {"a": 1}
    code         a block of ```python: a call of the tool `python` with the argument `code`

A text that means to call and fails is no exception: it is an error in words, for the model to read
and to try again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_single.envs import thoughts, tool_scan

CODE_TOOL = tool_scan.CODE_TOOL
CODE_ARGUMENT = tool_scan.CODE_ARGUMENT
REACT_ARGUMENT = tool_scan.REACT_ARGUMENT
Call = tool_scan.Call


@dataclasses.dataclass(frozen=True)
class Parsed:
    """What a model's message holds.

    Attributes:
      calls: in order; those before the first that is malformed.
      text: what it says besides.
      error: what is wrong with the call after these, None if nothing is; what follows it is not
        looked at, for the model has to write it again.
      thought: what it thinks (up to </think>); a call that is only thought of is none. A message
        that ends within a thought is all thought.
      start: where in the message its first call begins, None if it has none.
      rest: where in the message the malformed call begins, None if there is none.
      spans: from where to where in the message each of the calls goes.
    """

    calls: tuple[Call, ...]
    text: str
    error: str | None = None
    thought: str = ""
    start: int | None = None
    rest: int | None = None
    spans: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to write calls.

    Attributes:
      scanner: reads the calls of a text, whose types are taken from the JSON schemas of the tools:
        formats that write every argument as text need them, see `argument_types.read`. Without a
        schema such an argument is what its text is as JSON, else the text.
      render: a call as a model would write it.
      openings: where one of these begins in a message, a call may begin.
      role: who answers a call, of chat.ROLES: "tool", or "user" for models without tools.
      answer: a tool's result as the text of that message.
      begin: where a call begins: what stands before the tool's name, and what stands behind it;
        None where the name is not written.
      answer_of: the answer within a text without calls; None = all of it.
    """

    scanner: Callable[[str, Sequence[Mapping[str, Any]]], thoughts.Calls]
    render: Callable[[Call], str]
    openings: tuple[str, ...]
    role: str = "tool"
    answer: Callable[[str], str] = str
    begin: tuple[str, str | None] = ("", "")
    answer_of: Callable[[str], str] | None = None

    def beginning(self, tool: str | None) -> str:
        """How a model would begin a call of this tool; None = of some tool."""
        before, behind = self.begin
        if behind is None:
            return before
        return before.rstrip(" ") if tool is None else before + tool + behind

    def parse(
        self,
        text: str,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = False,
    ) -> Parsed:
        """Reads a message, thoughts and all, in linear time. It never raises, whatever the text.

        Args:
          tools: JSON schemas of the tools, if there are any.
          thinking: the prompt has begun a thought.
        """
        text = text.encode(errors="replace").decode()  # halves of characters; places stay
        found = thoughts.take_apart(text, self.scanner(text, tools), thinking=thinking)
        thought = "".join(text[start:end] for start, end in found.thoughts)
        if found.unfinished:
            return Parsed((), "", thought=thought)
        said = "".join(text[start:end] for start, end in found.said).strip()
        good = [one for one in found.calls if not one.fault]
        calls, spans = tuple(one.call for one in good), tuple((one.start, one.end) for one in good)
        start = found.calls[0].start if found.calls else None
        if start is None and self.answer_of is not None:
            said = self.answer_of(said)
        if found.calls and found.calls[-1].fault:
            last = found.calls[-1]
            return Parsed(calls, said, last.fault, thought, start, last.start, spans)
        return Parsed(calls, said, None, thought, start, spans=spans)


def of_template(source: str) -> str | None:
    """The name of the format that a chat template asks its model for, None if it shows none."""
    if "<function=" in source and "<parameter=" in source:
        return "qwen3_coder"
    if "<arg_key>" in source:
        return "glm"
    if "<tool_call>" in source:
        return "hermes"
    if tool_scan.PYTHON_TAG in source or '"parameters": dictionary' in source:
        return "llama3"
    return None


def get(name: str) -> Format:
    """Looks a format up; ValueError with the known names if there is none."""
    if name not in FORMATS:
        raise ValueError(f"tool format {name!r}; known are {sorted(FORMATS)}")
    return FORMATS[name]


def _render_hermes(call: Call) -> str:
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _render_qwen3_coder(call: Call) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{_written(value)}\n</parameter>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def _render_llama3(call: Call) -> str:
    return json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False)


def _render_glm(call: Call) -> str:
    arguments = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_written(value)}</arg_value>\n"
        for key, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}\n{arguments}</tool_call>"


def _render_react(call: Call) -> str:
    text = call.arguments.get(REACT_ARGUMENT)
    if len(call.arguments) == 1 and isinstance(text, str):
        plain = f"Action: {call.name}\nAction Input: {text}"
        if "\n" not in text and FORMATS["react"].parse(plain).calls == (call,):
            return plain
    return f"Action: {call.name}\nAction Input: {json.dumps(call.arguments, ensure_ascii=False)}"


def _render_code(call: Call) -> str:
    return f"```python\n{call.arguments[CODE_ARGUMENT].rstrip()}\n```"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FORMATS: dict[str, Format] = {
    "hermes": Format(
        tool_scan.Hermes,
        _render_hermes,
        ("<tool_call>",),
        begin=('<tool_call>\n{"name": "', '", "arguments":'),
    ),
    "qwen3_coder": Format(
        tool_scan.Qwen3Coder,
        _render_qwen3_coder,
        ("<tool_call>", "<function="),
        begin=("<tool_call>\n<function=", ">\n"),
    ),
    "llama3": Format(
        tool_scan.Llama3,
        _render_llama3,
        (tool_scan.PYTHON_TAG, "{"),
        begin=('{"name": "', '", "parameters":'),
    ),
    "glm": Format(tool_scan.Glm, _render_glm, ("<tool_call>",), begin=("<tool_call>", "\n")),
    "react": Format(
        tool_scan.React,
        _render_react,
        ("Action:",),
        role="user",
        answer="Observation: {}".format,
        begin=("Action: ", "\nAction Input:"),
        answer_of=tool_scan.answer,
    ),
    "code": Format(
        tool_scan.Code,
        _render_code,
        ("```py",),
        role="user",
        answer="```output\n{}\n```".format,
        begin=("```python\n", None),
    ),
}
