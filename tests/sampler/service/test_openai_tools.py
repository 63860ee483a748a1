"""Calls of tools in answers, with the official client; an engine plays what the model writes."""

import json
import pathlib
from concurrent import futures

import openai
import pytest
import server_lab
import tokenizers

from jaxrl_single import wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import tool_formats

TOKENIZER = pathlib.Path(__file__).parents[2] / "data" / "golden" / "chat" / "tokenizer.json"
SOURCE = """\
{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}{% for m in messages %}
{{ m.role + ': ' + m.content }}
{%- for call in m.tool_calls or [] %}
{{ call.function.name + ' ' }}{{ call.function.arguments.a }}
{%- endfor %}<|end|>
{% endfor %}
{{ style or '' }}
{%- if add_generation_prompt %}assistant: {% endif %}"""
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = tool_formats.Call("add", {"a": 1, "text": "é < 'b'"})
ASKED = [{"role": "user", "content": "the sum?"}]


def make_text():
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    tokenizer.add_special_tokens(["<|python_tag|>"])
    return text_lib.HfText(tokenizer, stop_token_ids=(2,), templates={"default": SOURCE})


TEXT = make_text()


class Player:
    """The engine's part that the service asks for: it answers with a prepared text."""

    vocab_size, cache_length, num_waiting, version, error = 400, 1024, 0, 0, None

    def __init__(self):
        self.says = ""
        self.finish_reason = "stop"
        self.requests = []

    def submit(self, request, on_tokens=None):
        self.requests.append(request)
        tokens = [*request.forced_tokens, *TEXT.tokenise(self.says)]
        tokens += [2] if self.finish_reason == "stop" else []
        for token in tokens if on_tokens else ():
            on_tokens(_completion([token], "stop"))
        done = futures.Future()
        done.set_result(_completion(tokens, self.finish_reason))
        return done

    def release(self, session):
        pass

    def stop(self):
        pass


def _completion(tokens, reason):
    count = len(tokens)
    return wire.Completion(tokens, [-0.5] * count, [0.1] * count, [0] * count, reason)


@pytest.fixture(scope="module", params=sorted(tool_formats.FORMATS))
def style(request):
    return request.param


@pytest.fixture(scope="module")
def played(style):
    player = Player()
    with (
        server_lab.serving(player, text=TEXT, tool_format=style, max_top_logprobs=0) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield player, client


def ask(played, says, *, reason="stop", **settings):
    player, client = played
    player.says, player.finish_reason = says, reason
    settings = {"model": "policy", "messages": ASKED, "tools": [ADD]} | settings
    return client.chat.completions.create(**settings)


def call_of(style):
    name, arguments = (CALL.name, dict(CALL.arguments))
    if style == "code":
        name, arguments = "python", {"code": "print(1 < 2)\n"}
    return tool_formats.FORMATS[style].render(tool_formats.Call(name, arguments)), name, arguments


@pytest.mark.parametrize("before", ["", "<think>\na {b}\n</think>\n\n", "I add.\n"])
def test_calls_are_told_apart_from_text_whole_and_in_a_stream(played, style, before):
    written, name, arguments = call_of(style)
    (choice,) = ask(played, before + written).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == (before or None)
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", name)
    assert json.loads(call.function.arguments) == arguments
    chunks = [chunk.choices[0] for chunk in ask(played, before + written, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == before
    assert [chunk.finish_reason for chunk in chunks[-2:]] == [None, "tool_calls"]
    (streamed,) = chunks[-1].delta.tool_calls
    assert (streamed.index, streamed.function) == (0, streamed.function)
    assert streamed.function.name == name
    assert json.loads(streamed.function.arguments) == arguments
    assert not any(chunk.delta.tool_calls for chunk in chunks[:-1])


def test_several_calls_and_only_the_first_where_asked(played, style):
    written, name, _ = call_of(style)
    both = f"{written}\n{written}"
    count = 1 if style == "react" else 2  # one thought, one action
    calls = ask(played, both).choices[0].message.tool_calls
    assert [call.function.name for call in calls] == [name] * count
    assert len({call.id for call in calls}) == count
    alone = ask(played, both, parallel_tool_calls=False).choices[0].message.tool_calls
    assert len(alone) == 1


def test_what_is_malformed_behind_a_call_stays_text():
    player, written = Player(), tool_formats.FORMATS["hermes"].render(CALL)
    with (
        server_lab.serving(player, text=TEXT, tool_format="hermes", max_top_logprobs=0) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client,
    ):
        says = f"I add.{written}<tool_call>oh</tool_call>"
        (choice,) = ask((player, client), says).choices
        assert choice.message.content == "I add.<tool_call>oh</tool_call>"
        assert [call.function.name for call in choice.message.tool_calls] == ["add"]
        chunks = [chunk.choices[0] for chunk in ask((player, client), says, stream=True)]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == choice.message.content
        (choice,) = ask((player, client), f"<think>I add.{written}").choices
        assert choice.message.tool_calls is None


def test_a_thought_that_the_prompt_begins_calls_nothing():
    player, written = Player(), tool_formats.FORMATS["hermes"].render(CALL)
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    source = "<tool_call>{{ messages | tojson + (tools | tojson) }}assistant:\n<think>\n"
    text = text_lib.HfText(tokenizer, stop_token_ids=(2,), templates={"default": source})
    with (
        server_lab.serving(player, text=text, max_top_logprobs=0) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client,
    ):
        for says, count in ((f"hm\n{written}", 0), (f"hm {written}\n</think>\n{written}", 1)):
            (choice,) = ask((player, client), says).choices
            assert len(choice.message.tool_calls or ()) == count


@pytest.mark.parametrize("case", ["no call", "malformed", "cut", "no tools", "none wanted"])
def test_what_is_no_call_stays_text(played, style, case):
    written, _, _ = call_of(style)
    says = {"no call": "It is {4} < 5.", "malformed": f"So\n{written[:-6]}"}.get(case, written)
    if (case, style) in (("malformed", "react"), ("malformed", "code")):
        says = "Action: add" if style == "react" else "```python\n1"
    settings = {
        "cut": {"reason": "length"},
        "no tools": {"tools": openai.NOT_GIVEN},
        "none wanted": {"tool_choice": "none"},
    }.get(case, {})
    (choice,) = ask(played, says, **settings).choices
    assert choice.finish_reason == settings.get("reason", "stop")
    assert choice.message.tool_calls is None
    shown = TEXT.decode(TEXT.tokenise(says), keep_special=case in ("no call", "malformed", "cut"))
    assert choice.message.content == shown
    chunks = [chunk.choices[0] for chunk in ask(played, says, stream=True, **settings)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == shown
    assert chunks[-1].finish_reason == choice.finish_reason


@pytest.mark.parametrize("choice", ["required", "named", "one of two"])
def test_a_required_call_is_begun_for_the_model(played, style, choice):
    player, _ = played
    written, name, _ = call_of(style)
    other = {"type": "function", "function": {"name": "other"}}
    tool = {"type": "function", "function": ADD["function"] | {"name": name}}
    named = {"type": "function", "function": {"name": name}}
    settings = {
        "required": {"tools": [tool], "tool_choice": "required"},
        "named": {"tools": [other, tool], "tool_choice": named},
        "one of two": {"tools": [other, tool], "tool_choice": "required"},
    }[choice]
    begun = tool_formats.FORMATS[style].beginning(None if choice == "one of two" else name)
    assert written.startswith(begun)
    extra = {"return_token_ids": True}
    (found,) = ask(played, written[len(begun) :], extra_body=extra, **settings).choices
    assert (found.finish_reason, found.message.content) == ("tool_calls", None)
    assert found.message.tool_calls[0].function.name == name
    forced = TEXT.tokenise(begun)
    assert list(player.requests[-1].forced_tokens) == forced
    assert found.model_extra["token_ids"][: len(forced)] == forced
    assert found.model_extra["num_forced_tokens"] == len(forced)
    chunks = list(ask(played, written[len(begun) :], stream=True, extra_body=extra, **settings))
    assert chunks[0].choices[0].model_extra["num_forced_tokens"] == len(forced)
    assert chunks[-1].choices[0].delta.tool_calls[0].function.name == name
    (rubbish,) = ask(played, " and no more", **settings).choices
    if style == "react" and choice != "one of two":
        return  # any text is the input of its action
    assert (rubbish.finish_reason, rubbish.message.tool_calls) == ("stop", None)


def test_a_call_is_not_begun_within_a_thought_of_the_prompt():
    player = Player()
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    source = "<tool_call>{{ messages | tojson + (tools | tojson) }}assistant:\n<think>\n"
    text = text_lib.HfText(tokenizer, stop_token_ids=(2,), templates={"default": source})
    with (
        server_lab.serving(player, text=text, max_top_logprobs=0) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client,
    ):
        ask((player, client), "", tool_choice="required")
        begun = "\n</think>\n\n" + tool_formats.FORMATS["hermes"].beginning("add")
        assert text.decode(player.requests[-1].forced_tokens) == begun


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tool_choice": "any"}, "allowed are auto, none, required and"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "allowed are auto"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "sub"}}},
            r"tools are \['add'\]",
        ),
        ({"tool_choice": "required", "tools": []}, r"tools are \[\]"),
        ({"tool_choice": "required", "max_tokens": 2}, "the beginning of a call"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "<|end|>"}}],
                "tool_choice": "required",
            },
            "can't be forced",
        ),
    ],
)
def test_a_choice_that_cannot_be_followed_is_refused(settings, words):
    with (
        server_lab.serving(
            Player(), text=TEXT, tool_format="hermes", max_top_logprobs=0
        ) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client,
        pytest.raises(openai.BadRequestError, match=words),
    ):
        ask((service.engine, client), "", **settings)


def test_the_template_shows_the_format_unless_one_is_given():
    player, written = Player(), tool_formats.FORMATS["hermes"].render(CALL)
    shown = "{{ messages | tojson + (tools | tojson) }}"
    for source, finish in ((f"<tool_call>{shown}", "tool_calls"), (shown, "stop")):
        tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
        text = text_lib.HfText(tokenizer, stop_token_ids=(2,), templates={"default": source})
        with (
            server_lab.serving(player, text=text, max_top_logprobs=0) as service,
            openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client,
        ):
            assert ask((player, client), written).choices[0].finish_reason == finish
    with (
        pytest.raises(ValueError, match="tool format 'hermos'; known are"),
        server_lab.serving(player, tool_format="hermos"),
    ):
        pass


def test_calls_may_be_told_by_special_tokens_alone():
    player = Player()
    written = '<|python_tag|>{"id": 1, "name": "add", "parameters": {}}'
    with (
        server_lab.serving(player, text=TEXT, tool_format="llama3", max_top_logprobs=0) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as client,
    ):
        (choice,) = ask((player, client), written).choices
        assert choice.message.tool_calls[0].function.name == "add"
        assert choice.message.content is None


def test_an_answer_goes_back_as_a_message_and_variables_reach_the_template(played):
    player, _ = played
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 7}'}}
        ],
    }
    answer = {"role": "tool", "tool_call_id": "a", "content": "95"}
    extra = {"chat_template_kwargs": {"style": "brief "}}
    ask(played, "4", messages=[*ASKED, message, answer], extra_body=extra)
    assert TEXT.decode(player.requests[-1].tokens, keep_special=True) == (
        "add;user: the sum?<|end|>\nassistant: add 7<|end|>\ntool: 95<|end|>\nbrief assistant: "
    )
    begun = [*ASKED, {"role": "assistant", "content": "It is "}]
    ask(played, "4", messages=begun, extra_body={"continue_final_message": True})
    shown = TEXT.decode(player.requests[-1].tokens, keep_special=True)
    assert shown.endswith("assistant: It is ")
    with pytest.raises(openai.BadRequestError, match=r"variables \['messages'\]"):
        ask(played, "4", extra_body={"chat_template_kwargs": {"messages": []}})
