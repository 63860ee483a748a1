"""Tokenizer and chat template, against what transformers made of the same files."""

import datetime
import json
import pathlib
import shutil

import pytest
import tokenizers

from jaxrl_single.data import text as text_lib

CHAT = pathlib.Path(__file__).parent / "golden" / "chat"
EXPECTED = json.loads((CHAT / "expected.json").read_text())
USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def chat():
    return text_lib.HfText.load(CHAT)


@pytest.fixture
def copied(tmp_path):
    """A directory with the tokenizer, to be changed."""
    shutil.copytree(CHAT, tmp_path / "chat")
    return tmp_path / "chat"


def with_template(source, **options):
    tokenizer = tokenizers.Tokenizer.from_file(str(CHAT / "tokenizer.json"))
    return text_lib.HfText(tokenizer, templates={"default": source}, **options)


@pytest.mark.parametrize("name", sorted(EXPECTED["rendered"]))
def test_conversations_become_the_ids_of_transformers(chat, name):
    case = EXPECTED["rendered"][name]
    assert chat.render(**case["input"]) == case["ids"]


def test_texts_become_the_ids_of_transformers(chat):
    for case in EXPECTED["encoded"]:
        assert chat.encode(case["text"]) == case["ids"], case["text"]


def test_ids_become_the_texts_of_transformers(chat):
    for case in EXPECTED["decoded"]:
        assert chat.decode(case["ids"], keep_special=case["keep"]) == case["text"], case


def test_ids_out_of_the_vocabulary_decode_to_nothing(chat):
    inside = chat.encode("the cat")
    assert inside[0] == 0  # a special token
    assert chat.vocab_size == 290
    assert chat.decode([-1, *inside, 290, 10**6]) == "the cat"


def test_what_was_cut_and_padded_when_it_was_saved_is_not_now(copied):
    path, text = str(copied / "tokenizer.json"), "the cat and the dog"
    tokenizer = tokenizers.Tokenizer.from_file(path)
    whole = tokenizer.encode(text).ids
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=40)
    tokenizer.save(path)
    assert len(tokenizers.Tokenizer.from_file(path).encode(text).ids) == 40
    assert text_lib.HfText.load(copied).encode(text) == whole


def test_half_a_character_is_an_error_in_words(chat):
    for ids_of in (chat.encode, chat.tokenise):
        with pytest.raises(ValueError, match="a character cut in half"):
            ids_of("a \ud83d")


def test_stop_tokens_come_from_the_first_file_that_names_some(copied):
    assert text_lib.HfText.load(copied).stop_token_ids == (2,)  # the tokenizer's eos_token
    (copied / "config.json").write_text('{"eos_token_id": 7}')
    # What the template writes behind an assistant's message stops, too: base models don't name it.
    assert text_lib.HfText.load(copied).stop_token_ids == (7, 2)
    (copied / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')
    assert text_lib.HfText.load(copied).stop_token_ids == (8, 9, 2)
    (copied / "generation_config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id is \['</s>'\]"):
        text_lib.HfText.load(copied)


def test_a_template_in_the_tokenizer_config_and_one_for_tools(copied):
    (copied / "chat_template.jinja").unlink()
    path = copied / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["eos_token"] = {"content": "<|end|>", "special": True}  # as older releases wrote it
    config["chat_template"] = [
        {"name": "default", "template": "plain{{ messages[0].content + eos_token }}"},
        {"name": "tool_use", "template": "{{ messages[0].content }} with {{ tools }}"},
    ]
    path.write_text(json.dumps(config))
    text = text_lib.HfText.load(copied)
    shown = text.decode(text.render([USER]), keep_special=True)
    assert shown == "plainhello<|end|>"
    shown = text.decode(text.render([USER], tools=[{"name": "a"}, {"name": "b"}]))
    assert shown == 'hello with [{"name": "a"}, {"name": "b"}]'
    (copied / "chat_template.jinja").write_text("from the file: {{ messages[0].content }}")
    text = text_lib.HfText.load(copied)
    assert text.decode(text.render([USER])) == "from the file: hello"


def test_without_a_template_messages_are_refused(copied):
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="there is no chat template"):
        text_lib.HfText.load(copied).render([USER])


def test_what_a_template_refuses_is_told(chat):
    with pytest.raises(ValueError, match="refuses these messages: unknown role system"):
        chat.render([{"role": "system", "content": "x"}])
    with pytest.raises(ValueError, match=r"messages\[0\] must be an object with a role"):
        chat.render([{"content": "x"}])
    with pytest.raises(ValueError, match=r"messages\[0\]: a message of role 'user' needs content"):
        chat.render([{"role": "user"}])


def test_a_template_runs_in_a_sandbox():
    for source in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        with pytest.raises(ValueError, match="unsafe"):
            with_template(source).render([USER])


def test_a_template_that_cannot_be_parsed_names_its_line():
    with pytest.raises(ValueError, match="of a model, chat template 'default', line 2"):
        with_template("fine\n{% for %}", where="of a model")


def test_a_generation_block_is_a_scope_of_its_own():
    source = "{% set x = 'a' %}{% generation %}{% set x = 'b' %}{{ x }}{% endgeneration %}{{ x }}"
    text = with_template(source)
    assert text.decode(text.render([])) == "ba"


def test_a_missing_or_torn_tokenizer_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json"):
        text_lib.HfText.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer"):
        text_lib.HfText.load(tmp_path)


def test_the_last_message_can_be_continued_where_the_template_shows_it(chat):
    """Blanks at its end stay, unlike in a finished message."""
    begun = [USER, {"role": "assistant", "content": "the answer is  "}]
    shown = chat.render_text(begun, continue_final=True)
    assert shown.endswith("assistant\nthe answer is  ")
    assert chat.render(begun, continue_final=True) == chat.tokenise(shown)
    hidden = with_template("{% for m in messages %}{{ m.role }}{% endfor %}")
    with pytest.raises(ValueError, match="does not show the last message as it is"):
        hidden.render(begun, continue_final=True)
    for messages in ([], [{"role": "assistant", "content": None}], [{"role": "assistant"}]):
        with pytest.raises(ValueError, match="whose content is text can be continued"):
            chat.render(messages, continue_final=True)


def test_variables_of_a_template_are_not_what_it_is_given_anyway(chat):
    for name in ("messages", "tools", "add_generation_prompt"):
        with pytest.raises(ValueError, match=rf"variables \['{name}'\] of a chat template"):
            chat.render([USER], template_args={name: 1})
    greeting = with_template(
        "{{ bos_token + name + messages[0].content }}", special_tokens={"bos_token": "a"}
    )
    shown = greeting.render_text([USER], template_args={"name": "b", "bos_token": "c"})
    assert shown == "cbhello"


def test_the_source_of_the_template_for_tools_can_be_asked_for(copied):
    assert text_lib.HfText.load(copied).template == (CHAT / "chat_template.jinja").read_text()
    (copied / "additional_chat_templates").mkdir()
    (copied / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert text_lib.HfText.load(copied).template == "with tools"
    (copied / "chat_template.jinja").unlink()
    assert (
        text_lib.HfText(tokenizers.Tokenizer.from_file(str(CHAT / "tokenizer.json"))).template == ""
    )


def test_a_piece_of_a_rendering_gets_nothing_around_it(chat, tmp_path):
    assert chat.tokenise("the cat") == chat.encode("the cat")[1:]
    assert chat.tokenise("<|end|>") == [2]
    chat.save(tmp_path / "tokenizer.json")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert again.encode("the cat").ids == chat.encode("the cat")


def test_the_day_that_a_template_shows_can_be_told(copied):
    (copied / "chat_template.jinja").write_text(
        "{{ strftime_now('%d %b %Y') + messages[0].content }}"
    )
    day = datetime.datetime(2026, 2, 3)
    assert text_lib.HfText.load(copied, now=day).render_text([USER]) == "03 Feb 2026hello"
    before = datetime.datetime.now()
    shown = text_lib.HfText.load(copied).render_text([USER])
    assert shown in {f"{time:%d %b %Y}hello" for time in (before, datetime.datetime.now())}
