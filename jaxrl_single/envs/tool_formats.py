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
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from jaxrl_single.envs import argument_types, json_text

CODE_TOOL = "python"  # what a code block calls
CODE_ARGUMENT = "code"
REACT_ARGUMENT = "input"  # of an Action Input that is no JSON object


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a tool.

    Attributes:
      name: of the tool.
      arguments: by name, JSON types.
    """

    name: str
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Parsed:
    """What a model's message holds.

    Attributes:
      calls: in order; none if there is an error, for then the model has to write all again.
      text: what it says besides.
      error: what is wrong with a call, None if nothing is.
      thought: what it thinks (up to </think>); a call that is only thought of is none.
      start: where in the message its first call begins, None if it has none.
    """

    calls: tuple[Call, ...]
    text: str
    error: str | None = None
    thought: str = ""
    start: int | None = None


class Read(Protocol):
    """Reads what a model says (without its thoughts). It never raises, whatever the text.

    `tools` are JSON schemas; formats that write every argument as text learn the types from them,
    see `argument_types.read`. Without a schema such an argument is what its text is as JSON, else
    the text.
    """

    def __call__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed: ...


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to write calls.

    Attributes:
      read: see `Read`; use `parse`.
      render: a call as a model would write it.
      openings: where one of these begins in a message, a call may begin.
      role: who answers a call, of chat.ROLES: "tool", or "user" for models without tools.
      answer: a tool's result as the text of that message.
      begin: where a call begins: what stands before the tool's name, and what stands behind it;
        None where the name is not written.
    """

    read: Read
    render: Callable[[Call], str]
    openings: tuple[str, ...]
    role: str = "tool"
    answer: Callable[[str], str] = str
    begin: tuple[str, str | None] = ("", "")

    def beginning(self, tool: str | None) -> str:
        """How a model would begin a call of this tool; None = of some tool."""
        before, behind = self.begin
        if behind is None:
            return before
        return before.rstrip(" ") if tool is None else before + tool + behind

    def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Parsed:
        """Reads a message, thoughts and all. It never raises, whatever the text.

        Args:
          tools: JSON schemas of the tools, if there are any; see `Read`.
        """
        thoughts, hidden = "", text
        for start, end in self._thoughts(text, tools):
            thoughts += text[start:end]
            # Hidden from the readers so that places stay; what follows begins a line.
            hidden = f"{hidden[:start]}{_HIDDEN * (end - start - 1)}\n{hidden[end:]}"
        found = self.read(hidden, tools)
        said = _BLANK.sub("", found.text).strip()
        return dataclasses.replace(found, text=said, thought=thoughts)

    def _thoughts(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
        """From where to where they go; the first one may have begun in the prompt."""
        said = 0  # what is said since the last thought begins here
        start: int | None = 0
        opened = False
        for tag in itertools.islice(_THINK_TAG.finditer(text), _MOST_TAGS):
            begins = tag[0] == "<think>"
            if opened if begins else start is None:
                continue  # one thought within another, or an end without a beginning
            place, end = tag.start() - said, tag.end() - said
            if not opened and self._is_within_call(text[said:], place, end, tools):
                continue
            if begins:
                start, opened = tag.start(), True
            else:
                yield start, tag.end()
                said, start, opened = tag.end(), None, False

    def _is_within_call(
        self, text: str, start: int, end: int, tools: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Whether a call is open at `start` that the rest completes, with text[start:end] in it."""
        if self.read(text[:start], tools).error is None:
            return False
        return len(self.read(text, tools).calls) > len(self.read(text[end:], tools).calls)


class _Malformed(Exception):
    """Words for the model."""


# Blocks between <tool_call> and </tool_call>, or to the end of the text.
_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_THINK_TAG = re.compile("</?think>")
_MOST_TAGS = 100  # of a message; more are rubbish, and each may cost a reading
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
_BARE_FUNCTION = re.compile(r"<function=.*?(?:</function>|\Z)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_HIDDEN = "\ue001"  # private use: stands for a character of a thought
_BLANK = re.compile(f"{_HIDDEN}+\n?")
_PYTHON_TAG = "<|python_tag|>"
_LLAMA_OBJECT = re.compile(r"\{\s*\"(?:(?:name|type|parameters)\"|function\"\s*:\s*\{)")
_LLAMA_ARGUMENTS = re.compile(r"\"(?:parameters|arguments)\"\s*:")
_LLAMA_NAME = re.compile(r"\"name\"\s*:\s*\"([^\"]*)\"")
_ACTION = re.compile(r"^[ \t]*Action:[ \t]*(.*)$", re.MULTILINE)
_ACTION_INPUT = re.compile(r"\A\s*Action Input:[ \t]*(.*?)(?=^[ \t]*Observation:|\Z)", re.M | re.S)
_FINAL = re.compile(r"\A.*^[ \t]*Final Answer:\s*", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^```(?:python|py)[ \t]*\n(.*?)(^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)


def of_template(source: str) -> str | None:
    """The name of the format that a chat template asks its model for, None if it shows none."""
    if "<function=" in source and "<parameter=" in source:
        return "qwen3_coder"
    if "<arg_key>" in source:
        return "glm"
    if "<tool_call>" in source:
        return "hermes"
    if _PYTHON_TAG in source or '"parameters": dictionary' in source:
        return "llama3"
    return None


def get(name: str) -> Format:
    """Looks a format up; ValueError with the known names if there is none."""
    if name not in FORMATS:
        raise ValueError(f"tool format {name!r}; known are {sorted(FORMATS)}")
    return FORMATS[name]


def _read_hermes(text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
    return _read_blocks(text, lambda block: _json_call(block, ("arguments", "parameters")))


def _read_qwen3_coder(text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
    # The outer tag is left out now and then; the function's own tags tell as much.
    if "<tool_call>" not in text:
        text = _BARE_FUNCTION.sub(lambda found: f"<tool_call>{found[0]}</tool_call>", text)
    return _read_blocks(text, lambda block: _function_call(block, tools))


def _read_glm(text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
    return _read_blocks(text, lambda block: _glm_call(block, tools))


def _read_llama3(text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
    start = text.find(_PYTHON_TAG)
    if start < 0:
        found = _LLAMA_OBJECT.search(text)
        if found is None or not _is_llama_call(text[found.start() :], tools):
            return Parsed((), text)
        start = found.start()
    calls = text[start:].removeprefix(_PYTHON_TAG)
    return _collect(
        lambda: [_as_call(found, ("parameters", "arguments")) for found in _objects(calls)],
        text[:start],
        start,
    )


def _objects(text: str) -> list[Any]:
    try:
        return json_text.objects(text)
    except ValueError as error:
        raise _Malformed(f"the call is not JSON: {error}") from error


def _is_llama_call(text: str, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether JSON that may be malformed means a call: an answer can have a name, too."""
    name = _LLAMA_NAME.search(text)
    known = {tool.get("function", tool).get("name") for tool in tools}
    return bool(_LLAMA_ARGUMENTS.search(text)) or (name is not None and name[1] in known)


def _read_react(text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
    action = _ACTION.search(text)
    if action is None:
        return Parsed((), _FINAL.sub("", text))
    return _collect(
        lambda: [_react_call(action[1].strip(), text[action.end() :])],
        text[: action.start()],
        action.start(),
    )


def _read_code(text: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
    return _read_all(
        _FENCE,
        text,
        lambda code: Call(CODE_TOOL, {CODE_ARGUMENT: code}),
        "the code block has no end; close it with a line of ```",
    )


def _read_blocks(text: str, read: Callable[[str], Call]) -> Parsed:
    return _read_all(_BLOCK, text, read, "a <tool_call> has no </tool_call>")


def _read_all(
    pattern: re.Pattern[str], text: str, read: Callable[[str], Call], if_open: str
) -> Parsed:
    """Blocks of the pattern: its first group is what `read` gets, its second the end, or empty."""
    blocks = list(pattern.finditer(text))

    def calls() -> list[Call]:
        if not all(block[2] for block in blocks):
            raise _Malformed(if_open)
        return [read(block[1]) for block in blocks]

    return _collect(calls, pattern.sub("", text), blocks[0].start() if blocks else None)


def _collect(calls: Callable[[], list[Call]], text: str, start: int | None) -> Parsed:
    try:
        return Parsed(tuple(calls()), text, start=start)
    except _Malformed as error:
        return Parsed((), text, str(error), start=start)


def _json_call(text: str, keys: Sequence[str]) -> Call:
    try:
        found = json_text.parse(text)
    except ValueError as error:
        raise _Malformed(f"the call is not JSON: {error}") from error
    return _as_call(found, keys)


def _as_call(found: Any, keys: Sequence[str]) -> Call:
    """A call of {"name": ..., key: {...}}, which may be the "function" of another object.

    The arguments may be absent or null, or JSON in a string.
    """
    if isinstance(found, dict) and isinstance(found.get("function"), dict) and "name" not in found:
        found = found["function"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
        raise _Malformed(f'a call is a JSON object {{"name": ..., "{keys[0]}": {{...}}}}')
    arguments = next((found[key] for key in keys if key in found), {})
    if isinstance(arguments, str):
        arguments = json_text.parse_or(arguments, arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise _Malformed(f'"{keys[0]}" of {found["name"]} must be a JSON object')
    return Call(found["name"], arguments)


def _function_call(block: str, tools: Sequence[Mapping[str, Any]]) -> Call:
    function = _FUNCTION.fullmatch(block)
    if function is None:
        raise _Malformed("a call is <function=NAME> with parameters, up to </function>")
    name, body = function[1].strip(), function[2]
    arguments = {
        key.strip(): _typed(_unframed(value), name, key, tools)
        for key, value in _PARAMETER.findall(body)
    }
    if _PARAMETER.sub("", body).strip():
        raise _Malformed(f"a parameter of {name} is <parameter=NAME>, its value, and </parameter>")
    return Call(name, arguments)


def _glm_call(block: str, tools: Sequence[Mapping[str, Any]]) -> Call:
    start = block.find("<arg_key>") if "<arg_key>" in block else len(block)
    name, body = block[:start].strip(), block[start:]
    if not name or any(mark in name for mark in "<>\n{"):
        raise _Malformed("a call is the tool's name, then its <arg_key> and <arg_value> pairs")
    arguments = {
        key.strip(): _typed(value, name, key, tools) for key, value in _GLM_ARGUMENT.findall(body)
    }
    if _GLM_ARGUMENT.sub("", body).strip():
        raise _Malformed(
            f"an argument of {name} is <arg_key>NAME</arg_key><arg_value>VALUE</arg_value>"
        )
    return Call(name, arguments)


def _react_call(name: str, rest: str) -> Call:
    given = _ACTION_INPUT.match(rest)
    if not name or given is None:
        raise _Malformed("a call is a line 'Action: NAME' and a line 'Action Input: ARGUMENTS'")
    text = _BLANK.sub("", given[1]).strip()
    arguments = json_text.parse_or(text, None)
    return Call(name, arguments if isinstance(arguments, dict) else {REACT_ARGUMENT: text})


def _unframed(value: str) -> str:
    """Without the line breaks that the format puts around a value."""
    return value.removeprefix("\n").removesuffix("\n")


def _typed(value: str, tool: str, key: str, tools: Sequence[Mapping[str, Any]]) -> Any:
    return argument_types.read(value, argument_types.of_argument(tool, key.strip(), tools))


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
    if set(call.arguments) == {REACT_ARGUMENT}:
        return f"Action: {call.name}\nAction Input: {call.arguments[REACT_ARGUMENT]}"
    return f"Action: {call.name}\nAction Input: {json.dumps(call.arguments, ensure_ascii=False)}"


def _render_code(call: Call) -> str:
    return f"```python\n{call.arguments[CODE_ARGUMENT].rstrip()}\n```"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FORMATS: dict[str, Format] = {
    "hermes": Format(
        _read_hermes,
        _render_hermes,
        ("<tool_call>",),
        begin=('<tool_call>\n{"name": "', '", "arguments":'),
    ),
    "qwen3_coder": Format(
        _read_qwen3_coder,
        _render_qwen3_coder,
        ("<tool_call>", "<function="),
        begin=("<tool_call>\n<function=", ">\n"),
    ),
    "llama3": Format(
        _read_llama3,
        _render_llama3,
        (_PYTHON_TAG, "{"),
        begin=('{"name": "', '", "parameters":'),
    ),
    "glm": Format(_read_glm, _render_glm, ("<tool_call>",), begin=("<tool_call>", "\n")),
    "react": Format(
        _read_react,
        _render_react,
        ("Action:",),
        role="user",
        answer="Observation: {}".format,
        begin=("Action: ", "\nAction Input:"),
    ),
    "code": Format(
        _read_code,
        _render_code,
        ("```py",),
        role="user",
        answer="```output\n{}\n```".format,
        begin=("```python\n", None),
    ),
}
