"""Finding and reading the calls of tools in a text: one scanner for each format of tool_formats.py.

Each goes forwards once. The patterns have no choice to go back on: literals, and repetitions that
keep what they took. A text that two careful readers could take for different calls is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_single.envs import argument_types, json_text, thoughts

CODE_TOOL = "python"  # what a code block calls
CODE_ARGUMENT = "code"
REACT_ARGUMENT = "input"  # of an Action Input that is no JSON object
PYTHON_TAG = "<|python_tag|>"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_LLAMA_BETWEEN = json_text.BLANKS + ";,"
_MAX_NAME = 256  # characters; of tools and arguments
_FUNCTION_OPENING = re.compile(r"<tool_call>|<function=")
_FUNCTION_TAG = re.compile(r"<function=|</function>|<parameter=|</parameter>")
_ARGUMENT_TAG = re.compile(r"</?arg_key>|</?arg_value>|</?tool_call>")
_LLAMA_OPENING = re.compile(r'<\|python_tag\|>|\{\s*+"(?:name|type|parameters|function)"')
_LLAMA_NAME = re.compile(r'\{\s*+"name"\s*+:\s*+"([^"]*+)"')
_LLAMA_WITHIN = re.compile(r'"\s*+:\s*+\Z')  # behind the key of another object
_LLAMA_NEXT = re.compile(f"[{_LLAMA_BETWEEN}]*+\\{{")
_REACT_LINE = re.compile(r"[ \t]*+(?:Thought|Action|Action Input|Observation|Final Answer):")
_FENCE = re.compile(r"```py(?:thon)?+[ \t]*+\n")
_REACT_END = re.compile(r"\n|</?think>")


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a tool.

    Attributes:
      name: of the tool.
      arguments: by name, JSON types.
    """

    name: str
    arguments: Mapping[str, Any]


class Scanner:
    """What the formats share: see `thoughts.Calls`."""

    def __init__(self, text: str, tools: Sequence[Mapping[str, Any]]):
        """Reads nothing yet; `tools` are JSON schemas."""
        self.text = text
        self.tools = tools

    def read(self, start: int, after: int) -> thoughts.Found | None:
        """See `thoughts.Calls`."""
        try:
            call, end = self._call(start)
        except _Malformed as error:
            return thoughts.Found(start, len(self.text), fault=str(error))
        return thoughts.Found(start, end, call)

    def _call(self, start: int) -> tuple[Call, int]:
        """The call that begins here and where it ends; _Malformed."""
        raise NotImplementedError

    def _skip(self, start: int) -> int:
        return json_text.skip_blanks(self.text, start)

    def _name(self, start: int, what: str) -> tuple[str, int]:
        """What stands up to the next >, and the place behind it."""
        end = self.text.find(">", start, start + _MAX_NAME)
        name = self.text[start:end].strip() if end >= 0 else ""
        if not name or "\n" in name or "<" in name:
            raise _Malformed(f"{what}=NAME> has no name")
        return name, end + 1

    def _typed(self, value: str, tool: str, key: str) -> Any:
        return argument_types.read(value, argument_types.of_argument(tool, key, self.tools))


class _Malformed(Exception):
    """Words for the model."""


class Hermes(Scanner):
    """<tool_call>JSON</tool_call>; a tag within a string of the JSON is part of the string."""

    def find(self, start: int) -> int:
        """See `thoughts.Calls`."""
        return self.text.find(_OPEN, start)

    def _call(self, start: int) -> tuple[Call, int]:
        place = self._skip(start + len(_OPEN))
        try:
            found, end = json_text.parse_from(self.text, place)
        except ValueError as error:
            if self.text.find(_CLOSE, place) < 0:
                raise _Malformed(f"a {_OPEN} has no {_CLOSE}") from error
            raise _Malformed(f"the call is not JSON: {error}") from error
        end = self._skip(end)
        if not self.text.startswith(_CLOSE, end):
            if self.text.startswith(_OPEN, end) or self.text.find(_CLOSE, end) < 0:
                raise _Malformed(f"a {_OPEN} has no {_CLOSE}")
            rest = self.text[end : end + 20]
            raise _Malformed(f"the call is not JSON: {rest!r} follows its end")
        return _as_call(found, ("arguments", "parameters")), end + len(_CLOSE)


class Qwen3Coder(Scanner):
    """<function=NAME> and its parameters, mostly between <tool_call> and </tool_call>."""

    def find(self, start: int) -> int:
        """See `thoughts.Calls`."""
        found = _FUNCTION_OPENING.search(self.text, start)
        return found.start() if found else -1

    def _call(self, start: int) -> tuple[Call, int]:
        framed = self.text.startswith(_OPEN, start)
        place = self._skip(start + len(_OPEN)) if framed else start
        if not self.text.startswith("<function=", place):
            raise _Malformed("a call is <function=NAME> with parameters, up to </function>")
        name, place = self._name(place + len("<function="), "<function")
        arguments: dict[str, Any] = {}
        while not self.text.startswith("</function>", place := self._skip(place)):
            place = self._parameter(name, place, arguments)
        place += len("</function>")
        end = self._skip(place)
        if self.text.startswith(_CLOSE, end):
            return Call(name, arguments), end + len(_CLOSE)
        if framed:
            raise _Malformed(f"after </function> of {name} there is no {_CLOSE}")
        return Call(name, arguments), place

    def _parameter(self, tool: str, place: int, arguments: dict[str, Any]) -> int:
        """Reads one parameter; returns where it ends."""
        if not self.text.startswith("<parameter=", place):
            raise _Malformed(
                f"a parameter of {tool} is <parameter=NAME>, its value, and </parameter>; "
                "the call goes up to </function>"
            )
        key, place = self._name(place + len("<parameter="), "<parameter")
        if key in arguments:
            raise _Malformed(f"the parameter {key} of {tool} stands twice")
        end = self._value_end(tool, key, place)
        value = self.text[place:end].removeprefix("\n")
        arguments[key] = self._typed(value.removesuffix("\n"), tool, key)
        closed = self.text.startswith("</parameter>", end)
        return end + len("</parameter>") * closed

    def _value_end(self, tool: str, key: str, start: int) -> int:
        """Where a value ends: at its </parameter>, else where the next one or the call's end is.

        A </function> that comes before </parameter> is part of the value.
        """
        function_end, place = -1, start
        while found := _FUNCTION_TAG.search(self.text, place):
            place = found.end()
            if found[0] == "</parameter>":
                return found.start()
            if found[0] == "</function>":
                function_end = found.start() if function_end < 0 else function_end
            elif function_end >= 0:
                break
            elif found[0] == "<parameter=" and self._is_next(tool, key, found.start()):
                return found.start()
            else:
                raise _Malformed(
                    f"the parameter {key} of {tool} has no </parameter> before {found[0]}"
                )
        if function_end < 0:
            raise _Malformed(f"a parameter of {tool} is <parameter=NAME>, up to </parameter>")
        return function_end

    def _is_next(self, tool: str, key: str, start: int) -> bool:
        """Whether <parameter=... within a value begins another one: text may be about tags."""
        name, _ = self._name(start + len("<parameter="), "<parameter")
        if name == key or self.text[start - 1] in "\"'`":
            return False
        declared = argument_types.names(tool, self.tools)
        return declared is None or name in declared


class Glm(Scanner):
    """<tool_call>NAME, and pairs of <arg_key> and <arg_value>."""

    def find(self, start: int) -> int:
        """See `thoughts.Calls`."""
        return self.text.find(_OPEN, start)

    def _call(self, start: int) -> tuple[Call, int]:
        start += len(_OPEN)
        tag = _ARGUMENT_TAG.search(self.text, start)
        if tag is None:
            raise _Malformed(f"a {_OPEN} has no {_CLOSE}")
        name = self.text[start : tag.start()].strip()
        if not 0 < len(name) <= _MAX_NAME or any(mark in name for mark in "<>\n{"):
            raise _Malformed("a call is the tool's name, then its <arg_key> and <arg_value> pairs")
        place, arguments = tag.start(), {}
        while not self.text.startswith(_CLOSE, place):
            key, place = self._between("<arg_key>", "</arg_key>", place, name)
            value, place = self._between("<arg_value>", "</arg_value>", self._skip(place), name)
            key = key.strip()
            if key in arguments:
                raise _Malformed(f"the argument {key} of {name} stands twice")
            arguments[key] = self._typed(value, name, key)
            place = self._skip(place)
        return Call(name, arguments), place + len(_CLOSE)

    def _between(self, opening: str, closing: str, start: int, tool: str) -> tuple[str, int]:
        """Up to the closing tag; within a value tags of calls are text, those of arguments not."""
        place = start + len(opening)
        if self.text.startswith(opening, start):
            while found := _ARGUMENT_TAG.search(self.text, place):
                if found[0] == closing:
                    return self.text[start + len(opening) : found.start()], found.end()
                if opening != "<arg_value>" or "tool_call" not in found[0]:
                    break
                place = found.end()
        raise _Malformed(
            f"an argument of {tool} is <arg_key>NAME</arg_key><arg_value>VALUE</arg_value>; "
            f"the call goes up to {_CLOSE}"
        )


class Llama3(Scanner):
    """JSON objects with a name and parameters, or anything after <|python_tag|>."""

    def __init__(self, text: str, tools: Sequence[Mapping[str, Any]]):
        """See `Scanner`."""
        super().__init__(text, tools)
        self._last_arguments = max(text.rfind('"parameters"'), text.rfind('"arguments"'))
        self._known = [tool.get("function", tool).get("name") for tool in tools]
        named = (text.rfind(f'"{name}"') for name in self._known)
        self._last = max(self._last_arguments, text.rfind(PYTHON_TAG), *named)

    def find(self, start: int) -> int:
        """See `thoughts.Calls`."""
        # Right behind a call an object is one, too, if only a wrong one.
        behind = _LLAMA_NEXT.match(self.text, start)
        if behind and start and self.text[start - 1] == "}":
            return behind.end() - 1
        found = _LLAMA_OPENING.search(self.text, start)
        return found.start() if found else -1

    def read(self, start: int, after: int) -> thoughts.Found | None:
        """See `thoughts.Calls`."""
        tagged = self.text.startswith(PYTHON_TAG, start)
        place = self._skip(start + len(PYTHON_TAG)) if tagged else start
        if not tagged and after < 0 and self._last < start:
            return None
        follows = after >= 0 and not self.text[after:start].strip(_LLAMA_BETWEEN)
        try:
            found, end = json_text.parse_from(self.text, place)
        except ValueError as error:
            name = _LLAMA_NAME.match(self.text, place)
            means = self._last_arguments >= place or (name and name[1] in self._known)
            if not (tagged or follows or means):
                return None
            fault = f"the call is not JSON: {error}"
            return thoughts.Found(start, len(self.text), fault=fault)
        within = _LLAMA_WITHIN.search(self.text[max(0, start - 9) : start])
        if not (tagged or follows or self._is_call(found)) or within:
            return thoughts.Found(start, end)
        try:
            return thoughts.Found(start, end, _as_call(found, ("parameters", "arguments")))
        except _Malformed as error:
            return thoughts.Found(start, end, fault=str(error))

    def _is_call(self, found: Any) -> bool:
        """An answer can have a name, too."""
        if isinstance(found.get("function"), dict):
            found = found["function"]
        name = found.get("name")
        known = isinstance(name, str) and name in self._known
        return known or "parameters" in found or "arguments" in found


class React(Scanner):
    """Lines `Action: NAME` and `Action Input: ARGUMENTS`; one action of a message runs."""

    def find(self, start: int) -> int:
        """See `thoughts.Calls`."""
        while (start := self.text.find("Action:", start)) >= 0:
            if _begins_line(self.text, start):
                return start
            start += 1
        return -1

    def read(self, start: int, after: int) -> thoughts.Found | None:
        """See `thoughts.Calls`."""
        if after >= 0:
            fault = "one Action at a time: only the first was run; wait for its Observation"
            return thoughts.Found(start, len(self.text), fault=fault)
        return super().read(start, after)

    def _call(self, start: int) -> tuple[Call, int]:
        line = self.text.find("\n", start)
        name = self.text[start + len("Action:") : line if line >= 0 else None].strip()
        place = self._skip(line) if line >= 0 else len(self.text)
        if not name or len(name) > _MAX_NAME or not self.text.startswith("Action Input:", place):
            raise _Malformed("a call is a line 'Action: NAME' and a line 'Action Input: ARGUMENTS'")
        place = self._skip(place + len("Action Input:"))
        arguments, end = self._input(name, place)
        said = self.text[end:].partition("Observation:")[0]  # the rest is made up
        if any(answer(one) != one for one in (said, thoughts.said(self.text[:start]))):
            raise _Malformed("an Action and a Final Answer are in one message; write one of them")
        invented = self.text.startswith("Observation:", self._skip(end))
        return Call(name, arguments), len(self.text) if invented else end

    def _input(self, name: str, start: int) -> tuple[Mapping[str, Any], int]:
        if self.text[start - 1] == "\n" and _REACT_LINE.match(self.text, start):
            raise _Malformed(f"the Action Input of {name} is empty; write {{}} for no arguments")
        if self.text.startswith("{", start):
            inside = self._skip(start + 1)
            try:
                found, end = json_text.parse_from(self.text, start)
            except ValueError as error:
                if self.text[inside : inside + 1] in ('"', "}"):
                    raise _Malformed(f"the Action Input of {name} is not JSON: {error}") from error
            else:
                line = _REACT_END.search(self.text, end)
                if self.text[end : line.start() if line else None].strip():
                    raise _Malformed(f"text follows the JSON of the Action Input of {name}")
                return found, end
        end = self._raw_end(start)
        return {REACT_ARGUMENT: self.text[start:end].strip()}, end

    def _raw_end(self, start: int) -> int:
        """Text goes on over lines, up to one that begins with a word of the format."""
        place = start
        while (found := _REACT_END.search(self.text, place)) and found[0] == "\n":
            place = found.end()
            if _REACT_LINE.match(self.text, place):
                return found.start()
        return found.start() if found else len(self.text)


class Code(Scanner):
    """A block of ```python, up to a line of ```."""

    def find(self, start: int) -> int:
        """See `thoughts.Calls`."""
        while found := _FENCE.search(self.text, start):
            if _begins_line(self.text, found.start(), blanks=False):
                return found.start()
            start = found.end()
        return -1

    def _call(self, start: int) -> tuple[Call, int]:
        begin = self.text.find("\n", start) + 1
        place = begin - 1
        while (place := self.text.find("\n```", place)) >= 0:
            line = self.text.find("\n", place + 1)
            line = len(self.text) if line < 0 else line
            if self.text[place + 4 : line].strip(" \t"):
                raise _Malformed("a line within the code block begins with ```; close it with ```")
            code = self.text[begin : place + 1]
            return Call(CODE_TOOL, {CODE_ARGUMENT: code}), line
        raise _Malformed("the code block has no end; close it with a line of ```")


def answer(text: str) -> str:
    """What follows the last line that begins with Final Answer:, all of it if there is none."""
    place = len(text)
    while (place := text.rfind("Final Answer:", 0, place)) >= 0:
        if _begins_line(text, place):
            return text[place + len("Final Answer:") :].lstrip()
    return text


def _begins_line(text: str, start: int, *, blanks: bool = True) -> bool:
    """Whether nothing but blanks is before it in its line; the end of a thought ends a line."""
    while blanks and start and text[start - 1] in " \t":
        start -= 1
    return not start or text[start - 1] == "\n" or text.endswith(thoughts.CLOSE, 0, start)


def _as_call(found: Any, keys: Sequence[str]) -> Call:
    """A call of {"name": ..., key: {...}}, which may be the "function" of another object.

    The arguments may be absent or null, or JSON in a string.
    """
    if isinstance(found, dict) and isinstance(found.get("function"), dict) and "name" not in found:
        found = found["function"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
        raise _Malformed(f'a call is a JSON object {{"name": ..., "{keys[0]}": {{...}}}}')
    given = [key for key in keys if key in found]
    if len(given) > 1 and found[given[0]] != found[given[1]]:
        raise _Malformed(f'{found["name"]} has both "{given[0]}" and "{given[1]}"')
    arguments = found[given[0]] if given else {}
    if isinstance(arguments, str):
        arguments = json_text.parse_or(arguments, arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise _Malformed(f'"{keys[0]}" of {found["name"]} must be a JSON object')
    return Call(found["name"], arguments)
