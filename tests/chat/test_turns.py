"""Recorded conversations as tokens: who wrote them, and where a new segment begins."""

import families
import pytest

from jaxrl_single.chat import turns

CALL = {"function": {"name": "find", "arguments": {"text": "<|im_end|>."}}}
TALK = [
    {"role": "user", "content": "find <|im_end|>"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "</tool_response>"},
    {"role": "assistant", "content": "so"},
]


@pytest.mark.parametrize("family", ["smollm", "llama"])
def test_the_assistants_turns_are_the_actions(family):
    text = families.make_text(family)
    found = turns.tokens(text, TALK, tools=[families.TOOL])
    assert set(found.segment_ids) == {1}
    actions, run = [], []
    for token, mine in zip([*found.ids, 0], [*found.action_mask, False], strict=True):
        if mine:
            run.append(token)
        elif run:
            actions.append(run)
            run = []
    assert len(actions) == 2
    for action in actions:
        assert [token in text.stop_token_ids for token in action].index(True) == len(action) - 1
    first, second = (text.decode(action, keep_special=True) for action in actions)
    assert '"text": "<|im_end|>."' in first
    assert "so" in second
    count = found.ids.index(text.stop_token_ids[0], len(found.ids) - 1)
    whole = text.render(TALK, tools=[families.TOOL], add_generation_prompt=False)
    assert text.decode(whole, keep_special=True).startswith(
        text.decode(found.ids[: count + 1], keep_special=True)
    )


def test_a_template_that_forgets_thoughts_begins_a_segment():
    text = families.make_text("qwen")
    talk = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "reasoning_content": "ho", "content": "d"},
    ]
    found = turns.tokens(text, talk)
    assert sorted(set(found.segment_ids)) == [1, 2]
    second = [i for i, segment in zip(found.ids, found.segment_ids, strict=True) if segment == 2]
    shown = text.decode(second, keep_special=True)
    assert "hm" not in shown
    assert shown.endswith("<think>\nho\n</think>\n\nd<|im_end|>")


def test_a_conversation_without_an_assistant_is_refused():
    with pytest.raises(ValueError, match="no message of the assistant"):
        turns.tokens(families.make_text("qwen"), TALK[:1])
