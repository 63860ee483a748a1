"""Bodies of OpenAI's endpoints: what becomes of each field, and which are refused by name."""

import pathlib
import re

import pytest

from jaxrl_single.envs import chat, chat_text
from jaxrl_single.sampler.service import http_errors, openai_api, openai_echo

TEXT = chat_text.CharText(chat.CharChat.build())
LIMITS = openai_api.Limits("policy", max_tokens=50, max_top_logprobs=3)
END = TEXT.stop_token_ids[0]
HELLO = {"messages": [{"role": "user", "content": "1+2"}]}


def completion(**body):
    return openai_api.completion_call({"prompt": [1, 2], **body}, TEXT, LIMITS)


def chat_call(**body):
    return openai_api.chat_call(HELLO | body, TEXT, LIMITS)


def test_defaults_are_those_of_openai():
    (request,) = completion(seed=5).requests()
    assert request.tokens == [1, 2]
    assert request.max_new_tokens == 16
    assert (request.temperature, request.top_p, request.top_k, request.min_p) == (1, 1, 0, 0)
    assert request.stop_token_ids == (END,)
    assert (request.stop, request.logit_bias, request.allowed_token_ids) == ((), (), ())
    assert (request.seed, request.ticket, request.record) == (5, 0, False)
    (request,) = chat_call().requests()
    assert request.tokens == TEXT.render(HELLO["messages"])
    assert request.max_new_tokens == LIMITS.max_tokens


def test_every_field_reaches_the_engine():
    (request,) = completion(
        model="policy",
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        seed=-1,
        stop="ab",
        stop_token_ids=[3, END],
        logit_bias={"5": -100, "6": 1.5},
        allowed_token_ids=[5, 6],
        logprobs=2,
        session_id="mine",
        policy_version=4,
        user="somebody",
        presence_penalty=0,
        echo=False,
        suffix=None,
    ).requests()
    assert (request.max_new_tokens, request.temperature, request.top_p) == (7, 0.5, 0.9)
    assert (request.top_k, request.min_p, request.seed) == (4, 0.1, 2**32 - 1)
    assert (request.stop, request.stop_token_ids) == (("ab",), (END, 3))
    assert request.logit_bias == ((5, -100.0), (6, 1.5))
    assert request.allowed_token_ids == (5, 6)
    assert (request.record, request.session, request.policy_version) == (True, "mine", 4)
    assert completion(ignore_eos=True).settings["stop_token_ids"] == ()
    assert completion(ignore_eos=True, stop_token_ids=[3]).settings["stop_token_ids"] == (3,)
    assert completion(top_k=-1).settings["top_k"] == 0
    assert chat_call(max_completion_tokens=3, max_tokens=9).settings["max_new_tokens"] == 3


def test_a_stop_string_that_is_a_special_token_stops_by_its_id():
    end, frame = TEXT.decode([END], keep_special=True), "<user>"
    settings = completion(stop=[end, "ab", frame], ignore_eos=True).settings
    assert settings["stop"] == ("ab",)
    assert settings["stop_token_ids"] == (END, *TEXT.encode(frame))
    # Others are looked for in the text, which shows them.
    assert completion(stop="<call>").settings["stop"] == ("<call>",)


def test_more_alternatives_than_there_are_name_the_setting():
    for call, name in ((completion, "logprobs"), (chat_call, "top_logprobs")):
        with pytest.raises(
            http_errors.ApiError, match=r"is 4, .* at most 3 .*top_logprobs"
        ) as found:
            call(**({"logprobs": True} | {name: 4}))
        assert (found.value.status, found.value.param) == (400, name)
    assert completion(logprobs=0).logprobs


@pytest.mark.parametrize(
    "tool",
    [1, {}, {"function": None}, {"function": {}}, {"function": {"name": "f", "parameters": [1]}}],
)
def test_malformed_tools_are_refused(tool):
    with pytest.raises(http_errors.ApiError, match=r"tools\[1\]") as found:
        chat_call(tools=[{"type": "function", "function": {"name": "f"}}, tool])
    assert found.value.status == 400


def test_choices_have_one_seed_and_sessions_of_their_own():
    call = completion(prompt=["1+2", [4, 5]], n=2, seed=7)
    requests = call.requests()
    assert [request.tokens for request in requests] == [TEXT.encode("1+2")] * 2 + [[4, 5]] * 2
    assert [request.ticket for request in requests] == [0, 1, 0, 1]
    assert {request.seed for request in requests} == {7}
    assert len({request.session for request in requests + call.requests()}) == 8
    unseeded = completion(prompt=[[4], [4]], n=2)
    first, second = (unseeded.requests()[at : at + 2] for at in (0, 2))
    assert [request.ticket for request in first] == [0, 1]
    assert len({request.seed for request in first}) == 1
    assert len({request.seed for request in first + second}) == 2


def test_messages_become_what_templates_read():
    seen = {}

    class Template(chat_text.CharText):
        def render(self, messages, *, tools, add_generation_prompt, continue_final, template_args):
            seen.update(messages=messages, tools=tools, prompt=add_generation_prompt)
            seen.update(final=continue_final, variables=template_args)
            return [1]

    tool = {"type": "function", "function": {"name": "add"}}
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    body = {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        "tools": [tool],
        "tool_choice": "auto",
        "add_generation_prompt": False,
    }
    openai_api.chat_call(body, Template(chat.CharChat.build()), LIMITS)
    assert seen["messages"][0] == {"role": "user", "content": "12"}
    assert seen["messages"][1]["content"] == ""
    assert seen["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert (seen["tools"], seen["prompt"]) == ([tool], False)
    assert (seen["final"], seen["variables"]) == (False, {})
    body |= {"continue_final_message": True, "chat_template_kwargs": {"enable_thinking": False}}
    del body["add_generation_prompt"]
    openai_api.chat_call(body | {"tool_choice": "none"}, Template(chat.CharChat.build()), LIMITS)
    assert seen["tools"] is None
    assert (seen["final"], seen["prompt"]) == (True, False)
    assert seen["variables"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", ""),
        ("prompt", None),
        ("prompt", [1, "a"]),
        ("prompt", [1, -2]),
        ("prompt", [True]),
        ("prompt", [1, 2**31]),
        ("prompt", "ä"),
        ("prompt", {"ids": [1]}),
        ("max_tokens", 0),
        ("max_tokens", 51),
        ("max_tokens", "9"),
        ("max_tokens", True),
        ("n", 0),
        ("n", 1025),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", 1e39),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("seed", 2**63),
        ("stop", [""]),
        ("stop", [1]),
        ("stop_token_ids", [1.0]),
        ("allowed_token_ids", "5"),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", [5]),
        ("logprobs", 4),
        ("stream", 1),
        ("stream_options", {"include_usage": "yes"}),
        ("session_id", ""),
        ("policy_version", -1),
        ("echo", 1),
        ("best_of", 2),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 1),
        ("temperatur", 1.0),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(field, value):
    with pytest.raises(http_errors.ApiError) as caught:
        completion(**{field: value})
    assert caught.value.status == 400
    expected = "include_usage" if field == "stream_options" else field
    assert caught.value.param == expected
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", None),
        ("messages", []),
        ("messages", ["1"]),
        ("messages", [{"content": "1"}]),
        ("messages", [{"role": "user", "content": 1}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "king", "content": "1"}]),
        ("messages", [{"role": "assistant", "content": "1", "tool_calls": [{"id": "a"}]}]),
        ("messages", [{"role": "assistant", "content": "1", "tool_calls": 5}]),
        ("tools", ["add"]),
        ("tools", {}),
        ("tools", [{"function": {"name": "f", "parameters": []}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("top_logprobs", 4),
        ("top_logprobs", 2),  # without logprobs
        ("prompt", [1]),
    ],
)
def test_a_wrong_field_of_a_chat_is_refused_by_its_name(field, value):
    with pytest.raises(http_errors.ApiError) as caught:
        chat_call(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)


def test_an_echo_may_ask_for_no_answer_and_cannot_be_streamed():
    call = completion(echo=True, max_tokens=0, logprobs=1, prompt=[[1, 2, 3], [4]])
    assert (call.echo, call.requests()) == (True, [])
    scoring, nothing = openai_echo.requests(call)
    assert (scoring.tokens, scoring.forced_tokens, scoring.max_new_tokens) == ([1], (2, 3), 2)
    assert (scoring.stop_token_ids, scoring.record) == ((), True)
    assert nothing is None, "a prompt of one token has nothing to score"
    assert openai_echo.requests(completion(echo=True)) == [None], "nobody asks for log-probs"
    with pytest.raises(http_errors.ApiError, match="stream"):
        completion(echo=True, stream=True)
    with pytest.raises(http_errors.ApiError, match="max_tokens"):
        completion(echo=False, max_tokens=0)


def test_the_documented_fields_are_the_known_ones():
    page = (pathlib.Path(__file__).parents[3] / "docs" / "sampler.md").read_text()
    section = page.partition("## Fields")[2].partition("## The distribution")[0]
    documented = {name.partition(".")[0] for name in re.findall(r"`([a-z_.]+)[`=]", section)}
    known = set()
    for read in (completion, chat_call):
        with pytest.raises(http_errors.ApiError) as caught:
            read(nobody_knows_it=1)
        known |= set(re.findall(r"'([a-z_]+)'", caught.value.message.partition("known are")[2]))
    assert known - documented <= {"model", "prompt", "messages"}
    assert documented - known <= {"length"}  # a finish reason


def test_a_session_takes_one_request_at_a_time():
    with pytest.raises(http_errors.ApiError, match="n = 1") as caught:
        completion(session_id="mine", n=2)
    assert caught.value.param == "session_id"


def test_another_model_is_not_found():
    with pytest.raises(http_errors.ApiError, match=r"'gpt-4'.*'policy'") as caught:
        completion(model="gpt-4")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
