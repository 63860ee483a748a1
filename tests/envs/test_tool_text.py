"""docs/tool_calls.md comes true, no text raises, and what is rendered is read again."""

import asyncio
import json
import pathlib

import hypothesis
import pytest
from hypothesis import strategies

from jaxrl_single.envs import thoughts, tool_formats, tool_reading
from jaxrl_single.envs.tool_formats import FORMATS, Call

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "tool_calls.md"
SCHEMA = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "required": ["a"],
        },
    },
}
PIECES = (
    '"', "'", "\\", "\n", " ", "{", "}", "[", ",", "a", "é", "日", "\x00", "12", "null", "%s",
    "\\n", "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "</function>",
    "```", "<parameter=a>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "Action: f", "Action Input:", "Observation:", "Final Answer:", "<|python_tag|>",
    "```python\n",
    '{"name": "f", "parameters": {"a": "1"}}', "<answer>", "\\boxed{", "\ud800", "1e999",
)  # fmt: skip
TEXTS = strategies.lists(strategies.sampled_from(PIECES), max_size=12).map("".join)
# What a format cannot write within an argument, for it has no way to escape it.
UNWRITABLE = {
    "hermes": (),
    "llama3": (),
    "react": (),
    "qwen3_coder": ("<parameter=", "</parameter>", "<function=", "</function>"),
    "glm": ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "code": ("```",),
}


def rows():
    lines = PAGE.read_text().splitlines()
    cells = [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]
    return [tuple(cell.strip() for cell in row) for row in cells if len(row) == 4]


@pytest.mark.parametrize(("name", "case", "text", "right"), rows())
def test_the_page_says_what_happens_to_nearly_right_text(name, case, text, right):
    message = _written(text)
    found = FORMATS[name.strip("`")].parse(message, [SCHEMA])
    shown = [f"`{call.name}({_shown(call.arguments)})`" for call in found.calls]
    shown += [f"error: {found.error}"] if found.error else []
    shown = shown or ["all thought" if found.thought == message else f'text "{found.text}"']
    assert ", then ".join(shown).replace("\n", "\\n") == right


def _written(cell):
    """A message in a cell: in backquotes (two where it has some), line breaks and | escaped."""
    inner = cell[3:-3] if cell.startswith("`` ") else cell[1:-1]
    return inner.replace("\\n", "\n").replace("\\|", "|")


def _shown(arguments):
    return ", ".join(f"{key}={value}" for key, value in arguments.items())


def test_the_page_has_a_row_of_each_kind_for_each_format():
    kinds = {}
    for name, case, _, _ in rows():
        kinds.setdefault(name.strip("`"), set()).add(case)
    assert set(kinds) == set(FORMATS)
    assert all(len(found) >= 5 for found in kinds.values())


@pytest.mark.parametrize("name", sorted(FORMATS))
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(text=TEXTS)
def test_no_text_raises(name, text):
    for message in (text, FORMATS[name].render(Call("f", {"code": "x"})) + text):
        for thinking in (False, True):
            found = FORMATS[name].parse(message, [SCHEMA], thinking=thinking)
            json.dumps([dict(call.arguments) for call in found.calls]).encode()
            assert (found.error is None) == (found.rest is None)


@pytest.mark.parametrize("name", sorted(FORMATS))
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(first=TEXTS, second=TEXTS)
def test_calls_that_are_rendered_are_read_again(name, first, second):
    style = FORMATS[name]
    for piece in (*UNWRITABLE[name], "\ud800"):
        first, second = first.replace(piece, ""), second.replace(piece, "")
    hypothesis.assume(not any(piece in first + second for piece in UNWRITABLE[name]))
    calls = (Call("f", {"a": first, "b": second}), Call("f", {"a": second}))
    if name == "code":
        calls = tuple(Call("python", {"code": f"{part.rstrip()}\n"}) for part in (first, second))
    calls = calls[:1] if name == "react" else calls
    found = style.parse("\n".join(map(style.render, calls)), [SCHEMA])
    assert (found.calls, found.error, found.thought) == (calls, None, "")


@pytest.mark.parametrize("name", ["hermes", "code"])
def test_a_long_message_is_read_elsewhere_to_the_same_end(name):
    style = FORMATS[name]
    call = Call("python", {"code": 'print("é </think>")\n' * 6_000})
    text = f"Well.\n{style.render(call)}\n"
    assert len(text) > tool_reading.MAX_LENGTH
    assert asyncio.run(tool_reading.parse(style, text)) == style.parse(text)


def test_a_reading_that_overruns_is_an_error_in_words():
    text = "x" * (tool_reading.MAX_LENGTH + 1)
    found = asyncio.run(tool_reading.parse(FORMATS["hermes"], text, timeout_s=0.0))
    assert (found.calls, "too long to be read" in found.error) == ((), True)


def test_a_thought_of_the_prompt_ends_at_the_first_end():
    call = FORMATS["hermes"].render(Call("f", {"a": "1"}))
    style = FORMATS["hermes"]
    assert style.parse(call, thinking=True).calls == ()
    assert style.parse(f"{call}</think>{call}", thinking=True).calls == (Call("f", {"a": "1"}),)
    assert style.parse(f"<think>x</think>{call}", thinking=True).calls
    assert thoughts.begun("assistant\n<think>\n")
    assert not thoughts.begun("<think>\n\n</think>\n\n")
    assert tool_formats.FORMATS["react"].parse("x\nFinal Answer: 4").text == "4"
