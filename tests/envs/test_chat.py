"""CharChat: ids of whole episodes, standard tokenizer.json, and refusal of what it cannot say."""

import json

import pytest
import tokenizers

from jaxrl_single.envs import chat

EPISODE = [
    ("prompt", "(37+58)*46", "<user>(37+58)*46<end><assistant>"),
    ("action_ids", "<call>37+58", "<call>37+58<end>"),
    ("observation", "95", "<tool>95<end><assistant>"),
    ("action_ids", "<answer>-4370", "<answer>-4370<end>"),
    ("observation", "error", "<tool>error<end><assistant>"),
]


@pytest.fixture
def char_chat():
    return chat.CharChat.build()


def test_vocabulary_is_small_and_a_multiple_of_eight(char_chat):
    assert char_chat.vocab_size == 32
    assert len(char_chat.stop_token_ids) == 1


@pytest.mark.parametrize(("method", "text", "_"), EPISODE)
def test_ids_are_in_the_vocabulary_and_one_per_piece(char_chat, method, text, _):
    ids = getattr(char_chat, method)(text)
    markers = {"prompt": 3, "observation": 3, "action_ids": 1}[method]
    spelled = len(text.replace("<call>", "c").replace("<answer>", "a"))
    assert len(ids) == spelled + markers
    assert all(0 <= token_id < char_chat.vocab_size for token_id in ids)


def test_plain_tokenizers_reads_the_file_and_agrees_on_ids_and_text(char_chat, tmp_path):
    path = tmp_path / "tokenizer.json"
    char_chat.save(path)
    plain = tokenizers.Tokenizer.from_file(str(path))
    for method, text, rendered in EPISODE:
        ids = getattr(char_chat, method)(text)
        assert plain.encode(rendered).ids == ids
        assert plain.decode(ids, skip_special_tokens=False) == rendered
    assert plain.get_vocab_size() == char_chat.vocab_size


def test_load_gives_the_same_chat(char_chat, tmp_path):
    path = tmp_path / "tokenizer.json"
    char_chat.save(path)
    loaded = chat.CharChat.load(path)
    assert loaded.vocab_size == char_chat.vocab_size
    assert loaded.stop_token_ids == char_chat.stop_token_ids
    for method, text, _ in EPISODE:
        assert getattr(loaded, method)(text) == getattr(char_chat, method)(text)


def test_load_refuses_a_tokenizer_without_the_markers(char_chat, tmp_path):
    path = tmp_path / "tokenizer.json"
    char_chat.save(path)
    content = json.loads(path.read_text().replace("<tool>", "<tule>"))
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"no \['<tool>'\]"):
        chat.CharChat.load(path)


def test_action_round_trip_is_exact(char_chat):
    for text in ("<call>1+2", "<answer>-3", "12*", "", "<call><answer><user>"):
        assert char_chat.action_text(char_chat.action_ids(text)) == text


def test_action_text_stops_at_end_and_bears_any_id(char_chat):
    (end,) = char_chat.stop_token_ids
    one = char_chat.action_ids("1")[0]
    assert char_chat.action_text([one, end, one, one]) == "1"
    assert char_chat.action_text([one, 999, -1]) == "1<id 999><id -1>"
    every_id = [token_id for token_id in range(char_chat.vocab_size) if token_id != end]
    assert "<pad>" in char_chat.action_text(every_id)
    assert "<unused0>" in char_chat.action_text(every_id)


def test_a_dialogue_gives_the_ids_of_its_messages_in_order(char_chat):
    dialogue = char_chat.dialogue()
    assert dialogue.prompt("(37+58)*46") == char_chat.prompt("(37+58)*46")
    assert dialogue.act(char_chat.action_ids("<call>37+58")) == "<call>37+58"
    assert dialogue.observe("95") == chat.Observed(char_chat.observation("95"))


def test_several_answers_are_several_messages_and_a_person_may_answer(char_chat):
    first, second = char_chat.observation("95"), char_chat.observation("7")
    observed = char_chat.dialogue().observe("95", "7")
    assert observed == chat.Observed(first[:-1] + second)
    assert char_chat.dialogue().observe("95", role="user").ids == char_chat.prompt("95")
    with pytest.raises(ValueError, match=r"role is 'assistant', allowed are \('tool', 'user'\)"):
        char_chat.dialogue().observe("95", role="assistant")


@pytest.mark.parametrize("method", ["prompt", "observation", "action_ids"])
def test_unknown_character_is_named_with_its_place(char_chat, method):
    with pytest.raises(ValueError, match=r"'x' at position 2 of '12x3' .*allowed characters"):
        getattr(char_chat, method)("12x3")


def test_a_marker_spelled_in_a_question_stays_text():
    """Nobody outside may inject structure: '<end>' in a question is five characters or an error."""
    with pytest.raises(ValueError, match="'<' at position 1"):
        chat.CharChat.build().prompt("1<end>")
    talkative = chat.CharChat.build("1<>end")
    ids = talkative.prompt("1<end>")
    assert ids.count(talkative.stop_token_ids[0]) == 1
    assert len(ids) == 3 + 6
