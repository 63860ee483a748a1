"""Calls of tools in messages that are hostile, nearly right, or only thought of."""

import asyncio
import time

import pytest

from jaxrl_single import types
from jaxrl_single.envs import answer_checks, answers, calculator_tool, tool_env, tool_formats
from jaxrl_single.envs.tool_formats import FORMATS, Call

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "state": {"type": "string"}},
        },
    },
}
HOSTILE = {
    "qwen3_coder": "<tool_call>\n<function=python>" + " " * 60_000 + "x</function></tool_call>",
    "glm": "<tool_call>a" + "<arg_key>" * 6_000 + "</tool_call>",
}


def read(name, text, tools=()):
    found = FORMATS[name].parse(text, tools)
    return [(call.name, dict(call.arguments)) for call in found.calls]


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_c19_hostile_text_is_read_in_linear_time(name):
    """The old scanners took 17 to 26 s; two seconds leave room for any machine."""
    started = time.process_time()
    found = FORMATS[name].parse(HOSTILE[name])
    assert time.process_time() - started < 2
    assert (found.calls, found.error is None) == ((), False)


@pytest.mark.parametrize("tools", [(), (WEATHER,)])
@pytest.mark.parametrize("between", ["\n", ""])
@pytest.mark.parametrize("closing", ["</parameter>\n", ""])
def test_c20_no_argument_swallows_the_next(tools, between, closing):
    text = (
        f"<tool_call>\n<function=weather>\n<parameter=city>{between}Dallas{between}"
        f"<parameter=state>\nTX\n{closing}</function>\n</tool_call>"
    )
    assert read("qwen3_coder", text, tools) == [("weather", {"city": "Dallas", "state": "TX"})]


def test_c20_an_argument_of_glm_without_its_end_is_refused():
    text = (
        "<tool_call>weather\n<arg_key>city</arg_key><arg_value>Dallas\n"
        "<arg_key>state</arg_key><arg_value>TX</arg_value></tool_call>"
    )
    assert read("glm", text, [WEATHER]) == []
    assert "an argument of weather" in FORMATS["glm"].parse(text, [WEATHER]).error


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm"])
def test_c21_a_closing_tag_within_an_argument_is_part_of_it(name):
    call = Call("say", {"text": "it ends with </tool_call> here"})
    style = FORMATS[name]
    assert style.parse(f"{style.render(call)}\n{style.render(call)}").calls == (call, call)


def test_c21_calls_before_a_malformed_one_run_and_the_answer_names_the_fault():
    good = FORMATS["hermes"].render(Call("calculator", {"expression": "2+3"}))
    env = tool_env.ToolEnv(
        make_tools=lambda seed: [calculator_tool.CalculatorTool()],
        tool_format=tool_formats.get("hermes"),
        check=answer_checks.exact,
        options=tool_env.Options(),
    )

    async def play():
        await env.reset(types.Task("t", "2+3?", "5"), seed=0)
        try:
            return await env.step(f'{good}<tool_call>{{"name": }}</tool_call>{good}')
        finally:
            await env.close()

    texts = asyncio.run(play()).texts
    assert texts[0] == "5"
    assert len(texts) == 2
    assert "not JSON" in texts[1]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_c22_an_unfinished_thought_says_nothing(name):
    written = FORMATS[name].render(Call("python", {"code": "print(7)\n"}))
    for text in (f"<think>\nmaybe\n{written}", f"{written}\n<think>no, 7"):
        found = FORMATS[name].parse(text)
        assert (found.calls, found.text, found.error) == ((), "", None)


@pytest.mark.parametrize("form", answers.FORMS)
def test_c22_nothing_in_an_unfinished_thought_is_the_answer(form):
    said = answers.phrase("7", form)
    assert answers.extract(f"<think>\n{said}", form) is None
    assert answers.extract(f"<think>8</think> Well. <think>\n{said}", form) is None
    assert answers.extract(f"<think>8</think>{said}", form) == "7"
