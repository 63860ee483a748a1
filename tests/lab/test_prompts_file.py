"""Files of prompts: what they may hold, and how mistakes are told."""

import json
import pathlib

import pytest

from jaxrl_single.data import text as text_lib
from jaxrl_single.lab import prompts_file

CHAT = pathlib.Path(__file__).parent.parent / "data" / "golden" / "chat"
USER = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def text():
    return text_lib.HfText.load(CHAT)


def read(tmp_path, *lines, text=None, **changes):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    limits = {"vocab_size": 290, "context_length": 16, "max_tokens": 8} | changes
    return prompts_file.read(path, text, **limits)


def test_three_kinds_of_prompts(tmp_path, text):
    found = read(
        tmp_path,
        json.dumps({"prompt_token_ids": [5, 0, 289], "id": {"a": 1}}),
        "",
        json.dumps({"prompt": "the cat", "max_tokens": 3}),
        json.dumps({"messages": USER, "id": "m"}),
        json.dumps({"messages": USER, "tools": [{"name": "t"}]}),
        json.dumps({"messages": USER, "chat_template_kwargs": {"thought": "the dog"}}),
        text=text,
        context_length=200,
    )
    assert [prompt.index for prompt in found] == [0, 1, 2, 3, 4]
    assert [prompt.id for prompt in found] == [{"a": 1}, None, "m", None, None]
    assert [prompt.max_tokens for prompt in found] == [8, 3, 8, 8, 8]
    assert found[0].tokens == (5, 0, 289)
    assert found[1].tokens == tuple(text.encode("the cat"))
    assert found[2].tokens == tuple(text.render(USER))
    assert found[3].tokens == tuple(text.render(USER, tools=[{"name": "t"}]))
    assert found[4].tokens == tuple(text.render(USER, template_args={"thought": "the dog"}))
    assert found[4].tokens != found[2].tokens


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting"),
        ("[1]", "expected a JSON object, found a list"),
        ('{"id": 1}', "has none of prompt_token_ids, prompt, messages"),
        ('{"prompt": "a", "messages": []}', r"has \['prompt', 'messages'\] of .*exactly one"),
        ('{"prompt": "a", "temperature": 1}', r"unknown fields \['temperature'\]"),
        ('{"prompt_token_ids": "1 2"}', "expected a list of whole numbers"),
        ('{"prompt_token_ids": [1, true]}', "expected a list of whole numbers"),
        ('{"prompt_token_ids": []}', "the prompt has no token"),
        ('{"prompt_token_ids": [1, 290]}', r"token 1 is 290, ids are 0 \.\. 289"),
        ('{"prompt_token_ids": [-1]}', "token 0 is -1"),
        (json.dumps({"prompt_token_ids": [1] * 16}), "has 16 tokens; the model's context is 16"),
        ('{"messages": []}', "there is no message"),
        ('{"messages": ' + '{"a":' * 20000, "nested too deeply"),
        ('{"prompt": 3}', "prompt: expected a text, found a int"),
        ('{"messages": "hi"}', "messages: expected a list of objects"),
        ('{"messages": [{"role": "system", "content": ""}]}', "unknown role system"),
        (
            json.dumps({"messages": USER, "chat_template_kwargs": ["thought"]}),
            "chat_template_kwargs: expected an object",
        ),
        (
            json.dumps({"messages": USER, "chat_template_kwargs": {"tools": []}}),
            r"the variables \['tools'\] of a chat template can't be set",
        ),
        (
            '{"prompt": "a", "chat_template_kwargs": {}}',
            r"chat_template_kwargs are for messages only",
        ),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0, expected a whole number >= 1"),
        ('{"prompt": "a", "max_tokens": 1.5}', "max_tokens is 1.5"),
    ],
)
def test_mistakes_name_the_line(tmp_path, text, line, message):
    with pytest.raises(prompts_file.BadPrompt, match=r"prompts\.jsonl, line 2: .*" + message):
        read(tmp_path, '{"prompt": "a"}', line, text=text)


def test_null_variables_are_none(tmp_path, text):
    line = json.dumps({"messages": USER, "chat_template_kwargs": None, "tools": None})
    (found,) = read(tmp_path, line, text=text, context_length=200)
    assert found.tokens == tuple(text.render(USER))


def test_without_a_tokenizer_there_are_token_ids_only(tmp_path):
    assert read(tmp_path, '{"prompt_token_ids": [1]}')[0].tokens == (1,)
    with pytest.raises(prompts_file.BadPrompt, match=r"no tokenizer\.json; give prompt_token_ids"):
        read(tmp_path, '{"prompt": "a"}')


def test_a_file_without_prompts(tmp_path):
    with pytest.raises(prompts_file.BadPrompt, match="there is no prompt in it"):
        read(tmp_path, "", "  ")
