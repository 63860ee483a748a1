"""One's own tools, answer checks and rewards, by the name of their functions."""

import asyncio

import pytest

from configs import common
from jaxrl_single import types
from jaxrl_single.envs import base, own_code, table, tool_formats
from tests.envs import own

SPEC = table.get("tools")
TASK = types.Task("t", "Say yes", "yes")


def section(**changes):
    fields = {"answer_check": "exact", "answer_form": "text", "tools": ("tests.envs.own:look_up",)}
    return {**common.base().env.to_dict(), **fields, **changes}


def play(found, *actions):
    async def go():
        env = SPEC.make_env(found)()
        await env.reset(TASK, seed=0)
        try:
            return [await env.step(action) for action in actions]
        finally:
            await env.close()

    return asyncio.run(go())


def called(**arguments):
    return tool_formats.get("hermes").render(tool_formats.Call("look_up", arguments))


def test_the_schema_of_a_tool_comes_from_its_signature_and_docstring():
    assert own_code.schema_of(own.look_up, "")["function"] == {
        "name": "look_up",
        "description": "Looks a word up in the dictionary.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "description": "to look for."},
                "count": {"type": "integer", "description": "of the answers."},
                "order": {"anyOf": [{"enum": ["up", "down"]}, {"type": "null"}]},
            },
            "required": ["word"],
        },
    }


def test_calls_reach_the_function_and_bad_ones_are_told():
    (good,) = play(section(), called(word="a", count=2))
    (bad,) = play(section(), called(word="a", count="many"))
    assert "a x 2" in good.observation[0]
    assert "count is 'many', must be of type integer" in bad.observation[0]
    tool = own_code.tool("tests.envs.own:look_up_async")()
    assert asyncio.run(tool.call({"word": "a"})) == "['a', 1]"


@pytest.mark.parametrize("word", ["stop", "exit"])
def test_whatever_a_tool_raises_is_its_failure(word):
    with pytest.raises(base.ToolError, match="look_up: "):
        play(section(), called(word=word))


def test_checks_and_rewards_of_either_kind_judge():
    (result,) = play(section(answer_check="tests.envs.own:starts_alike"), "yonder")
    assert (result.reward, result.info) == (1.0, {"success": True})
    partial = {"answer_check": "tests.envs.own:half", "partial_credit": True}
    (result,) = play(section(**partial), "no")
    assert (result.reward, result.info) == (0.5, {"success": False})
    (result,) = play(section(reward="tests.envs.own:short_is_better"), "yes")
    assert result.reward == pytest.approx(0.97)
    with pytest.raises(base.RewardError, match="the reward is None, expected a finite number"):
        play(section(reward="tests.envs.own:gives_nothing"), "yes")


def test_a_plain_function_does_not_hold_the_loop():
    async def go():
        ticks = 0
        judged = asyncio.create_task(own_code.call(own.sleeps, TASK, "yes"))
        while not judged.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks, judged.result()

    ticks, score = asyncio.run(go())
    assert ticks > 1
    assert score == 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tools": ("nowhere:f",)}, "env.tools is 'nowhere:f', but it cannot be imported: Modul"),
        ({"tools": ("tests.envs.own:gone",)}, "has no attribute 'gone'"),
        ({"tools": ("tests.envs.own:NO_FUNCTION",)}, "which is a int, not a function"),
        ({"tools": ("tests.envs.own:untyped",)}, "whose argument word has no annotation"),
        ({"tools": ("tests.envs.own:typed_oddly",)}, "allowed are str, int"),
        ({"answer_check": "tests.envs.own:takes_nothing"}, "it must take (task, answer)"),
        ({"reward": "tests.envs.own:half"}, "it must take (task, answer, score)"),
        ({"reward": "mine"}, "allowed are 'module:function'"),
        ({"answer_check": "mine"}, "your own as 'module:function'"),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_run(changes, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        SPEC.make_env(section(**changes))
    assert words in str(caught.value)


def test_they_are_tried_on_a_task_before_a_run():
    SPEC.trial(section(answer_check="tests.envs.own:half"), TASK)
    with pytest.raises(ValueError, match=r"tried on a task: .*the score is None"):
        SPEC.trial(section(answer_check="tests.envs.own:gives_nothing"), TASK)
