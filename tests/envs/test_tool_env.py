"""Episodes with tools: calls are answered in order, wrong ones in words, the answer is judged."""

import asyncio

import pytest

from jaxrl_single import types
from jaxrl_single.envs import answer_checks, base, calculator_tool, tool_env, tool_formats

TASK = types.Task("t", "What is 12 + 5 - 3?", "14", {"expression": "12 + 5 - 3"})


ECHO = {
    "type": "function",
    "function": {
        "name": "echo",
        "parameters": {
            "type": "object",
            "properties": {
                "count": {"type": "integer"},
                "word": {"type": "string"},
                "end": {"type": ["string", "null"]},
                "times": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "rest": True,
            },
            "required": ["word"],
        },
    },
}


class Echo:
    """Takes arguments of several types, and can fail."""

    name = "echo"
    schema = ECHO

    def __init__(self, seed):
        self.seed = seed
        self.closed = 0

    async def call(self, arguments):
        if arguments["word"] == "break":
            raise OSError("the tool is broken")
        return arguments["word"] * arguments.get("count", 1) + (arguments.get("end") or "")

    async def close(self):
        self.closed += 1


def _env(tool_format="hermes", check=answer_checks.exact, tools=None, **options):
    return tool_env.ToolEnv(
        make_tools=tools or (lambda seed: [calculator_tool.CalculatorTool(), Echo(seed)]),
        tool_format=tool_formats.get(tool_format),
        check=check,
        options=tool_env.Options(**options),
    )


def _play(env, *actions):
    async def play():
        assert await env.reset(TASK, seed=7) == TASK.question
        try:
            return [await env.step(action) for action in actions]
        finally:
            await env.close()

    return asyncio.run(play())


def _call(name, tool_format="hermes", **arguments):
    return tool_formats.get(tool_format).render(tool_formats.Call(name, arguments))


@pytest.mark.parametrize("tool_format", ["hermes", "qwen3_coder", "llama3", "glm", "react"])
def test_call_is_answered_and_the_answer_judged_in_every_format(tool_format):
    call = _call("calculator", tool_format, expression="12 + 5 - 3")
    called, answered = _play(_env(tool_format), call, "14")
    shown = tool_formats.get(tool_format).answer("14")
    assert called == base.StepResult(
        (shown,), info={"success": False}, role=tool_formats.get(tool_format).role
    )
    assert (answered.reward, answered.terminated) == (1.0, True)
    assert answered.info == {"success": True}


def test_a_plain_action_input_is_the_only_argument():
    (called,) = _play(_env("react"), "Action: calculator\nAction Input: 12 + 5")
    assert called.texts == ("Observation: 17",)


def test_calls_of_one_action_are_answered_in_order_each_by_its_message():
    action = "".join(_call("echo", word=word, count=2) for word in "abc")
    (called,) = _play(_env(), action)
    assert called.texts == ("aa", "bb", "cc")


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        ('<tool_call>{"name": "echo"', "error: "),
        (_call("echo"), "error: echo: the arguments are [], expected ['count', 'end', "),
        (_call("echo", word="a", size=3), "['size', 'word'], expected ['count', 'end', "),
        (_call("echo", word=3), "error: echo: word is 3, must be of type string"),
        (_call("echo", word="a", count="3"), "count is '3', must be of type integer"),
        (_call("echo", word="a", end=3), "end is 3, must be of type string or null"),
        (_call("echo", word="a", times="3"), "times is '3', must be of type integer or null"),
        (_call("search", word="a"), "no tool 'search'; there are ['calculator', 'echo']"),
        (_call("calculator", expression="1/0"), "error: division by zero"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_and_the_episode_goes_on(action, complaint):
    failed, called = _play(_env(), action, _call("echo", word="b"))
    assert complaint in failed.texts[0]
    assert not failed.terminated
    assert failed.info == {"success": False}
    assert called.texts == ("b",)


def test_arguments_may_be_of_any_of_several_types():
    calls = [_call("echo", word="a", end=end, times=None, rest=1) for end in ("b", None)]
    assert [called.texts for called in _play(_env(), *calls)] == [("ab",), ("a",)]


def test_switched_off_tools_only_ever_fail_but_answers_count():
    called, answered = _play(_env(tools_enabled=False), _call("echo", word="a"), "14")
    assert called.texts == ("error: the tools are switched off",)
    assert answered.reward == 1.0


def test_long_answers_keep_head_and_tail():
    (called,) = _play(_env(max_output=10), _call("echo", word="abcdefghij", count=3))
    assert called.texts == ("abcde\n[20 characters left out]\nfghij",)


def test_role_can_be_told():
    (called,) = _play(_env(role="user"), _call("echo", word="a"))
    assert called.role == "user"


@pytest.mark.parametrize(
    ("form", "text", "success"),
    [
        ("last_number", "First 12, so the answer is 14.", True),
        ("last_number", "14 or 15", False),
        ("last_number", "I do not know", False),
        ("boxed", r"It is \boxed{14}", True),
        ("boxed", "14", False),
        ("text", "", False),
    ],
)
def test_answer_is_taken_from_its_form(form, text, success):
    (answered,) = _play(_env(answer_form=form), text)
    assert answered.terminated
    assert answered.reward == float(success)
    assert answered.info == {"success": success}


@pytest.mark.parametrize(("partial", "reward"), [(False, 0.0), (True, 0.4)])
def test_a_part_of_the_score_counts_only_if_asked_for(partial, reward):
    async def check(task, answer):
        return 0.4

    (answered,) = _play(_env(check=check, partial_credit=partial), "14")
    assert answered.reward == reward
    assert answered.info == {"success": False}


def test_failures_of_tool_and_judge_are_no_verdict():
    async def check(task, answer):
        raise ZeroDivisionError("the judge is broken")

    with pytest.raises(base.ToolError, match="echo: OSError: the tool is broken"):
        _play(_env(), _call("echo", word="break"))
    with pytest.raises(base.RewardError, match="'14' to task 't' can't be judged: Zero"):
        _play(_env(check=check), "14")


def test_every_tool_gets_the_seed_and_is_closed_once_even_if_one_fails():
    class Stuck(Echo):
        name = "stuck"

        async def close(self):
            await super().close()
            raise OSError("does not close")

    made = []

    def tools(seed):
        made.extend([Echo(seed), Stuck(seed)])
        return made

    with pytest.raises(OSError, match="does not close"):
        _play(_env(tools=tools), "14")
    assert [(tool.seed, tool.closed) for tool in made] == [(7, 1), (7, 1)]
    asyncio.run(_env().close())  # without a reset
