"""Calls of tools as models write them: right ones, malformed ones, and all kinds of rubbish."""

import json
import random

import pytest

from jaxrl_single.envs import tool_formats
from jaxrl_single.envs.tool_formats import FORMATS, Call

SUM = Call("sum", {"a": 1, "b": -2.5, "exact": True, "note": "é < 'x' & \"y\"", "list": [1, {}]})
CODE = Call("python", {"code": "for i in range(3):\n    print(i < 2)\n"})
SCHEMA = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}},
        },
    },
}
JSON_FORMATS = ("hermes", "llama3")
XML_FORMATS = ("qwen3_coder", "glm")


def calls_of(name, text, tools=()):
    parsed = FORMATS[name].parse(text, tools)
    assert parsed.error is None
    return parsed.calls


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("before", ["", "I add.\n", "<think>\nhm {\n</think>\n\nI add.\n"])
def test_what_is_rendered_is_read_again(name, before):
    style = FORMATS[name]
    call = CODE if name == "code" else SUM
    parsed = style.parse(before + style.render(call))
    assert parsed.calls == (call,)
    assert parsed.text == ("I add." if "add" in before else "")
    assert parsed.thought == before.partition("\n\n")[0] * ("think" in before)
    assert parsed.error is None
    assert parsed.start == len(before)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"react"}))
def test_several_calls_keep_their_order(name):
    style = FORMATS[name]
    made = [Call("python", {"code": f"print({number})\n"}) for number in range(3)]
    assert calls_of(name, "\n".join(map(style.render, made))) == tuple(made)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_message_without_a_call_is_text(name):
    for text in ("", "It is 4.", "{} is empty", "a < b", "Call me. Action is good.", "```\nx\n```"):
        assert FORMATS[name].parse(text) == tool_formats.Parsed((), text)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_call_that_is_only_thought_of_is_none(name):
    style = FORMATS[name]
    call = style.render(CODE)
    thought = f"maybe\n{call}\nno</think>"  # the template has opened the thoughts
    assert style.parse(thought + "It is 4.") == tool_formats.Parsed((), "It is 4.", None, thought)
    both = f"<think>a\n{call}</think>{call}\n<think>b</think>"
    parsed = style.parse(both)
    assert parsed.calls == (CODE,)
    assert parsed.start == both.index("</think>") + len("</think>")
    assert parsed.text == ""
    assert parsed.thought == f"<think>a\n{call}</think><think>b</think>"


def test_a_call_before_a_later_thought_is_one():
    style = FORMATS["hermes"]
    parsed = style.parse(f"Well. {style.render(SUM)}\n<think>so</think>\nDone.")
    assert (parsed.calls, parsed.start) == ((SUM,), len("Well. "))
    assert (parsed.thought, parsed.text) == ("<think>so</think>", "Well. \n\nDone.")


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"react"}))
def test_an_end_of_thought_within_a_call_ends_none(name):
    style = FORMATS[name]
    call = Call("python", {"code": "print('</think>', '</think>')\n"})
    written = style.render(call)
    assert style.parse(written).calls == (call,)
    assert style.parse(f"<think>no</think>{written}").calls == (call,)
    assert style.parse(f"hm</think>{written}").calls == (call,)
    thought = f"maybe\n{written}\nno</think>"
    assert style.parse(thought + "It is 4.") == tool_formats.Parsed((), "It is 4.", None, thought)
    # A thought that only names the tag leaves no call open behind it.
    opening = style.openings[0]
    assert style.parse(f"I need\n{opening}\nnow</think>\n{written}").calls == (call,)
    tags = Call("python", {"code": "print('<think>a</think>')\n"})
    assert style.parse(f"hm {opening}</think>{style.render(tags)}").calls == (tags,)
    assert style.parse(f"<think>{opening}</think>{style.render(tags)}").calls == (tags,)


MALFORMED = [
    ("hermes", "<tool_call>{}</tool_call>", 'a call is a JSON object {"name"'),
    ("hermes", "<tool_call>[1]</tool_call>", "a call is a JSON object"),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>', "a call is a JSON object"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "of f must be a JSON obj"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>', "not JSON: Expecting"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN is no number"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "not JSON"),
    ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "not JSON: nested too deeply"),
    ("hermes", '<tool_call>{"name": "f"}', "a <tool_call> has no </tool_call>"),
    ("hermes", "<tool_call>", "a <tool_call> has no </tool_call>"),
    ("qwen3_coder", "<tool_call>f(1)</tool_call>", "a call is <function=NAME>"),
    ("qwen3_coder", "<function=f><parameter=a>1</parameter>", "up to </function>"),
    ("qwen3_coder", "<function=f><parameter=a>1", "a parameter of f is <parameter=NAME>"),
    ("qwen3_coder", "<function=f>a=1</function>", "a parameter of f is"),
    ("llama3", '<|python_tag|>print("x")', "the call is not JSON"),
    ("llama3", '{"name": "f", "parameters": {"a": }}', "the call is not JSON"),
    ("llama3", '{"name": "f", "parameters": "no"}', '"parameters" of f must be a JSON object'),
    ("llama3", '{"type": "function", "parameters": {}}', "a call is a JSON object"),
    ("glm", "<tool_call></tool_call>", "a call is the tool's name"),
    ("glm", '<tool_call>{"name": "f"}</tool_call>', "a call is the tool's name"),
    ("glm", "<tool_call>f\n<arg_key>a</arg_key></tool_call>", "an argument of f is <arg_key>"),
    ("react", "Action: sum\nof 1 and 2", "a line 'Action: NAME' and a line 'Action Input"),
    ("react", "Action:\nAction Input: 1", "a call is a line 'Action: NAME'"),
    ("code", "```python\nprint(1)", "the code block has no end"),
]


@pytest.mark.parametrize(("name", "text", "reason"), MALFORMED)
def test_a_malformed_call_is_an_error_in_words(name, text, reason):
    parsed = FORMATS[name].parse("Well.\n" + text)
    assert parsed.calls == ()
    assert reason in parsed.error
    assert parsed.text == "Well."
    assert parsed.start == len("Well.\n")


def test_calls_before_a_malformed_one_run_and_those_after_it_do_not():
    style = FORMATS["hermes"]
    text = f"{style.render(SUM)}<tool_call>oh</tool_call>{style.render(SUM)}"
    parsed = style.parse(text)
    assert parsed.calls == (SUM,)
    assert "not JSON" in parsed.error
    assert (parsed.start, parsed.rest) == (0, text.index("<tool_call>oh"))
    parsed = FORMATS["llama3"].parse('{"name": "f", "parameters": {}} ; {"nome": 1}')
    assert parsed.calls == (Call("f", {}),)
    assert "a call is a JSON object" in parsed.error


def test_common_variants_of_json_calls():
    right = (Call("f", {"a": 1}),)
    assert calls_of("hermes", '<tool_call>{"name":"f","parameters":{"a":1}}</tool_call>') == right
    assert (
        calls_of("hermes", '<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call>')
        == right
    )
    for nothing in ("", ', "arguments": null', ', "arguments": {}', ', "parameters": null'):
        assert calls_of("hermes", f'<tool_call>{{"name": "f"{nothing}}}</tool_call>') == (
            Call("f", {}),
        )
    raw = '{"name": "f", "arguments": {"code": "a = 1\n\tb"}}'
    assert (
        calls_of("hermes", f"<tool_call>\n{raw}\n</tool_call>")[0].arguments["code"] == "a = 1\n\tb"
    )
    assert calls_of("llama3", raw)[0].arguments["code"] == "a = 1\n\tb"
    assert calls_of("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}') == right
    assert (
        calls_of("llama3", 'So: {"type": "function", "name": "f", "parameters": {"a": 1}}') == right
    )
    assert calls_of("llama3", '{"name": "f", "arguments": {"a": 1}} and that is all') == right
    nested = '{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}'
    assert calls_of("llama3", nested) == right
    assert calls_of("llama3", f"<|python_tag|>{nested}; {nested}") == right * 2
    assert calls_of("hermes", f"<tool_call>{nested}</tool_call>") == right
    assert calls_of("llama3", '{"function": {"name": "f", "parameters": {"a": 1}}}') == right
    twice = '{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {"a": 1}}'
    assert calls_of("llama3", twice) == right * 2


def test_json_that_has_a_name_is_an_answer_unless_it_names_a_tool_or_has_arguments():
    for text in (
        '{"name": "Alice", "age": 30}',
        'So: {"type": "circle", "radius": 2}',
        '{"function": "f(x)", "at": 2}',
    ):
        assert FORMATS["llama3"].parse(text, [SCHEMA]) == tool_formats.Parsed((), text)
    assert calls_of("llama3", '{"name": "find"}', [SCHEMA]) == (Call("find", {}),)
    assert calls_of("llama3", '{"name": "find"}', [SCHEMA["function"]]) == (Call("find", {}),)
    assert calls_of("llama3", '<|python_tag|>{"name": "f"}', [SCHEMA]) == (Call("f", {}),)


@pytest.mark.parametrize("name", XML_FORMATS)
@pytest.mark.parametrize(
    "parameters", [None, {"properties": None}, {"properties": {"a": True}}, {"properties": {}}]
)
def test_schemas_that_declare_nothing_leave_arguments_to_their_looks(name, parameters):
    call = Call("f", {"a": 1})
    schema = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert calls_of(name, FORMATS[name].render(call), [schema]) == (call,)


def test_typed_arguments_follow_the_schema_and_else_their_looks():
    written = {
        "qwen3_coder": "<function=find><parameter=text>\n12\n</parameter>"
        "<parameter=limit>\n3\n</parameter></function>",
        "glm": "<tool_call>find\n<arg_key>text</arg_key><arg_value>12</arg_value>"
        "<arg_key>limit</arg_key>\n<arg_value>3</arg_value></tool_call>",
    }
    for name, text in written.items():
        assert calls_of(name, text, [SCHEMA]) == (Call("find", {"text": "12", "limit": 3}),)
        assert calls_of(name, text, [SCHEMA["function"]])[0].arguments["text"] == "12"
        assert calls_of(name, text)[0].arguments == {"text": 12, "limit": 3}
    words = "<tool_call>find<arg_key>limit</arg_key><arg_value>many {</arg_value></tool_call>"
    assert calls_of("glm", words, [SCHEMA])[0].arguments == {"limit": "many {"}
    # Line breaks around a value belong to the format, those within it to the value.
    code = "<function=run><parameter=code>\n\nx = 1\n\n</parameter></function>"
    assert calls_of("qwen3_coder", code)[0].arguments == {"code": "\nx = 1\n"}


TYPES = {
    "flag": {"type": "boolean"},
    "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "code": {"type": ["string", "null"]},
    "limit": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    "choice": {"enum": ["1", "2"]},
    "level": {"enum": [1, 2, None]},
    "options": {"type": "object"},
    "other": {"anyOf": [{"$ref": "#/$defs/Other"}, {"type": "null"}]},
}


@pytest.mark.parametrize("name", XML_FORMATS)
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("flag", "True", True),
        ("flag", "False", False),
        ("flag", "true", True),
        ("flag", "None", "None"),
        ("zip", "12345", "12345"),
        ("zip", "true", "true"),
        ("zip", "True", "True"),
        ("zip", "null", None),
        ("code", "007", "007"),
        ("code", "None", None),
        ("limit", "3", 3),
        ("limit", "None", None),
        ("limit", "many", "many"),
        ("choice", "1", "1"),
        ("level", "2", 2),
        ("level", "None", None),
        ("options", '{"a": 1}', {"a": 1}),
        ("options", "{'a': 1}", "{'a': 1}"),
        ("other", "12", 12),
        ("unknown", "12", 12),
    ],
)
def test_a_type_may_be_declared_in_many_ways(name, key, text, value):
    function = {"name": "find", "parameters": {"type": "object", "properties": TYPES}}
    written = FORMATS[name].render(Call("find", {key: text}))
    (call,) = calls_of(name, written, [{"type": "function", "function": function}])
    assert call.arguments[key] == value
    assert type(call.arguments[key]) is type(value)


def test_react_reads_up_to_an_invented_observation():
    text = 'Thought: add\nAction: sum\nAction Input: {"a": 1}\nObservation: 5\nFinal Answer: 5'
    assert calls_of("react", text) == (Call("sum", {"a": 1}),)
    plain = "Action: search\nAction Input: the cat\n"
    assert calls_of("react", plain) == (Call("search", {"input": "the cat"}),)
    assert FORMATS["react"].render(Call("search", {"input": "the cat"})) == plain.strip()
    parsed = FORMATS["react"].parse("Thought: done\nFinal Answer: 4")
    assert (parsed.calls, parsed.text) == ((), "4")


def test_answers_are_told_in_the_words_of_the_format():
    assert FORMATS["hermes"].answer("4") == "4"
    assert FORMATS["react"].answer("4 {}") == "Observation: 4 {}"
    assert FORMATS["code"].answer("4") == "```output\n4\n```"
    assert {name for name, style in FORMATS.items() if style.role == "user"} == {"react", "code"}


def test_a_template_shows_its_format():
    for source, name in (
        ("return {{ '<tool_call>' }} JSON", "hermes"),
        ("<tool_call>\n<function=example><parameter=x>", "qwen3_coder"),
        ("<tool_call>{name}\n<arg_key>", "glm"),
        ("{{ '<|python_tag|>' }}", "llama3"),
        ("{{ message.content }}", None),
    ):
        assert tool_formats.of_template(source) == name
    with pytest.raises(ValueError, match=r"tool format 'hermos'; known are \['code', 'glm'"):
        tool_formats.get("hermos")
    assert tool_formats.get("glm") is FORMATS["glm"]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_rubbish_never_raises_and_what_is_read_is_json(name):
    """Pieces of calls in any order, cut anywhere."""
    rng = random.Random(name)
    style = FORMATS[name]
    whole = style.render(CODE if name == "code" else SUM)
    pieces = [
        *whole, whole, "<tool_call>", "</tool_call>", "<think>", "</think>", "{", "}", '"', "\n",
        "<function=", ">", "</function>", "<parameter=", "</parameter>", "<arg_key>", "</arg_key>",
        "<arg_value>", "</arg_value>", "Action:", "Action Input:", "```python\n", "```", "\ud800",
        '{"name": "f", "arguments": {', "<|python_tag|>", "\x00", "1e999", "9" * 5000,
    ]  # fmt: skip
    for _ in range(600):
        text = "".join(rng.choices(pieces, k=rng.randrange(1, 12)))
        text += whole[: rng.randrange(len(whole))]
        parsed = style.parse(text, [SCHEMA] * rng.randrange(2))
        for call in parsed.calls:
            assert isinstance(call.name, str)
            assert call.name
            json.dumps(dict(call.arguments))
