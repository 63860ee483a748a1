"""CharText: a conversation has the ids of the episode with the same texts."""

import pytest

from jaxrl_single.envs import chat, chat_text

CHAT = chat.CharChat.build()
TEXT = chat_text.CharText(CHAT)


def test_a_conversation_has_the_ids_of_an_episode():
    episode = [
        *CHAT.prompt("(37+58)*46"),
        *CHAT.action_ids("<call>37+58"),
        *CHAT.observation("95"),
    ]
    messages = [
        {"role": "user", "content": "(37+58)*46"},
        {"role": "assistant", "content": "<call>37+58"},
        {"role": "tool", "content": "95"},
    ]
    assert TEXT.render(messages) == episode
    assert TEXT.render(messages, add_generation_prompt=False) == episode[:-1]
    assert TEXT.render(messages[:2], continue_final=True) == episode[:-6]
    assert TEXT.encode("<user>(37+58)*46<end><assistant>") == CHAT.prompt("(37+58)*46")


def test_decode_leaves_out_the_frame_but_not_the_words_of_the_agent():
    ids = [*CHAT.prompt("1+2"), *CHAT.action_ids("<answer>3")]
    assert TEXT.decode(ids) == "1+2<answer>3"
    framed = "<user>1+2<end><assistant><answer>3<end>"
    assert TEXT.decode(ids, keep_special=True) == framed
    assert TEXT.decode([99, TEXT.encode("7")[0]]) == "7"
    assert TEXT.stop_token_ids == tuple(TEXT.encode("<end>"))
    assert TEXT.vocab_size == CHAT.vocab_size


def test_a_marker_in_a_question_stays_spelled_text():
    with pytest.raises(ValueError, match="'<' at position 1"):
        TEXT.render([{"role": "user", "content": "1<end>"}])


@pytest.mark.parametrize(
    ("messages", "tools", "reason"),
    [
        ([{"role": "system", "content": "1"}], None, "no role 'system'.*'user', 'assistant'"),
        ([{"role": "user", "content": "1"}], [{"type": "function"}], "no place for tools"),
        ([{"role": "user", "content": "ä"}], None, "not in the vocabulary"),
    ],
)
def test_what_the_language_cannot_say_is_refused(messages, tools, reason):
    with pytest.raises(ValueError, match=reason):
        TEXT.render(messages, tools=tools)
    with pytest.raises(ValueError, match=r"no chat template to set \['enable_thinking'\] in"):
        TEXT.render([], template_args={"enable_thinking": False})
