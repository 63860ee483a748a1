"""The script of arithmetic tasks: right by default, wrong in many ways at the rate asked for."""

import asyncio
import collections

import numpy as np
import pytest

from jaxrl_single import types
from jaxrl_single.envs import (
    answer_checks,
    arithmetic_script,
    calculator_tool,
    tool_env,
    tool_formats,
)

TASK = types.Task("t", "Calculate 12 + 5 * (3 - 1).", "22", {"expression": "12 + 5 * (3 - 1)"})


def _script(rate, seed=0, task=TASK, tool_format="hermes", form="last_number"):
    return arithmetic_script.ArithmeticScript(
        task,
        mistake_rate=rate,
        rng=np.random.default_rng(seed),
        make_call=arithmetic_script.calculator_call,
        tool_format=tool_formats.get(tool_format),
        answer_form=form,
    )


async def _play(script, tool_format="hermes", form="last_number"):
    env = tool_env.ToolEnv(
        make_tools=lambda seed: [calculator_tool.CalculatorTool()],
        tool_format=tool_formats.get(tool_format),
        check=answer_checks.number,
        options=tool_env.Options(answer_form=form),
    )
    said, observation = [], await env.reset(TASK, 0)
    for _ in range(6):
        said.append(await script.act(observation))
        result = await env.step(said[-1])
        if result.terminated:
            return said, result.info["success"]
        observation = "\n".join(result.texts)
    raise AssertionError(f"the script does not end: {said}")


@pytest.mark.parametrize("tool_format", ["hermes", "qwen3_coder", "llama3", "glm"])
@pytest.mark.parametrize("form", ["text", "last_number", "tag", "boxed"])
def test_without_mistakes_it_calls_once_and_is_right(tool_format, form):
    script = _script(0.0, tool_format=tool_format, form=form)
    said, success = asyncio.run(_play(script, tool_format, form))
    assert success
    assert len(said) == 2
    (call,) = tool_formats.get(tool_format).parse(said[0]).calls
    assert call == tool_formats.Call("calculator", {"expression": "12 + 5 * (3 - 1)"})


def test_mistakes_come_at_their_rate_and_are_of_many_kinds():
    async def play_all(rate):
        return [await _play(_script(rate, seed)) for seed in range(300)]

    some = asyncio.run(play_all(0.3))
    # Two actions that must both be right; a broken call is repeated, which saves a few.
    assert 0.45 < np.mean([success for _, success in some]) < 0.65
    firsts = collections.Counter(said[0] for said, _ in asyncio.run(play_all(1.0)))
    assert len(firsts) > 20
    assert not any('"12 + 5 * (3 - 1)"}}\n</tool_call>' in text for text in firsts)
    assert any(text.startswith("The answer is") for text in firsts)


def test_after_an_error_it_repeats_the_call_correctly():
    script = _script(1.0)

    async def act():
        await script.act(TASK.question)
        return await script.act("error: a <tool_call> has no </tool_call>")

    (call,) = tool_formats.get("hermes").parse(asyncio.run(act())).calls
    assert call.arguments == {"expression": TASK.data["expression"]}


def test_the_same_seed_says_the_same():
    first, again, other = (asyncio.run(_play(_script(0.5, seed)))[0] for seed in (3, 3, 4))
    assert first == again != other


def test_python_call_prints_the_value():
    call = arithmetic_script.python_call("1 + 2")
    assert call == tool_formats.Call("python", {"code": "print(1 + 2)"})


def test_tasks_without_an_expression_are_refused():
    with pytest.raises(ValueError, match="task 'x' has no expression"):
        _script(0.0, task=types.Task("x", "?", "1"))
    with pytest.raises(ValueError, match="mistake_rate is 2"):
        _script(2)
