"""OpenAI's endpoints with the official client against a real engine."""

import itertools
import json
import urllib.error
import urllib.request

import numpy as np
import openai
import pytest
import sampler_lab as lab
import server_lab

TEXT = server_lab.TEXT
END = TEXT.stop_token_ids[0]
PROMPT = TEXT.encode("<user>(37+58)*46<end><assistant>")
MESSAGES = [{"role": "user", "content": "(37+58)*46"}]
TRAINING = {"return_token_ids": True}
TRAINING_FIELDS = (
    "token_ids",
    "rollout_logprobs",
    "untruncated_logprobs",
    "entropies",
    "policy_versions",
)


@pytest.fixture(scope="module")
def service():
    engine = server_lab.make_engine()
    engine.start()
    with server_lab.serving(engine, model_name="tiny") as service:
        yield service


@pytest.fixture(scope="module")
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client, prompt=PROMPT, *, extra=None, **settings):
    settings = {"model": "tiny", "max_tokens": 20, "seed": 3} | settings
    return client.completions.create(prompt=prompt, extra_body=extra, **settings)


def talk(client, *, extra=None, **settings):
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "seed": 3} | settings
    return client.chat.completions.create(extra_body=extra, **settings)


def joined(lists) -> list:
    return list(itertools.chain.from_iterable(lists))


def test_the_model_is_listed(service, client):
    assert [model.id for model in client.models.list()] == ["policy", "tiny"]
    assert client.models.retrieve("policy").id == "policy"
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="'tiny'"):
        client.models.retrieve("gpt-4")
    # Models are often named by a path.
    status, answer = service.get("/v1/models/models/tiny")
    assert (status, answer["error"]["message"].count("'models/tiny'")) == (404, 1)


def test_an_answer_is_what_the_engine_sampled(service, client):
    asked = lab.request(
        tokens=PROMPT, seed=3, max_new_tokens=20, stop_token_ids=(END,), temperature=0.7
    )
    engine_says = service.engine.submit(asked).result()
    service.engine.release(asked.session)
    answer = complete(client, extra=TRAINING, temperature=0.7, logprobs=2)
    (choice,) = answer.choices
    extras = choice.model_extra
    assert extras["token_ids"] == engine_says.tokens
    assert extras["prompt_token_ids"] == PROMPT
    assert extras["rollout_logprobs"] == engine_says.logprobs
    assert extras["untruncated_logprobs"] == engine_says.untruncated_logprobs
    assert extras["entropies"] == engine_says.entropies
    assert extras["policy_versions"] == [0] * len(engine_says.tokens)
    assert choice.finish_reason == engine_says.finish_reason
    shown = [token for token in engine_says.tokens if token != END]
    assert choice.text == TEXT.decode(shown)
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.completion_tokens == len(engine_says.tokens)
    assert answer.usage.total_tokens == len(PROMPT) + len(engine_says.tokens)


def test_logprobs_in_the_format_of_completions(client):
    (choice,) = complete(client, extra=TRAINING, logprobs=2).choices
    found = choice.logprobs
    ids = choice.model_extra["token_ids"]
    assert found.tokens == [TEXT.decode([token], keep_special=True) for token in ids]
    assert found.token_logprobs == choice.model_extra["untruncated_logprobs"]
    assert found.text_offset[1:] == [len("".join(found.tokens[:n])) for n in range(1, len(ids))]
    for name, value, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[name] == pytest.approx(value, abs=1e-6)
        assert len(top) - 2 in (0, 1)  # the sampled token may be among the two likeliest
        assert max(top.values()) >= value
    assert complete(client, logprobs=0).choices[0].logprobs.top_logprobs is None
    assert complete(client).choices[0].logprobs is None


def test_a_chat_is_the_completion_of_its_rendering(client):
    answer = talk(client, extra=TRAINING, logprobs=True, top_logprobs=3)
    (plain,) = complete(client, extra=TRAINING).choices
    (choice,) = answer.choices
    assert answer.model_extra["prompt_token_ids"] == TEXT.render(MESSAGES) == PROMPT
    assert choice.model_extra["token_ids"] == plain.model_extra["token_ids"]
    assert (choice.message.role, choice.message.content) == ("assistant", plain.text)
    for entry, value in zip(
        choice.logprobs.content, plain.model_extra["untruncated_logprobs"], strict=True
    ):
        assert entry.logprob == value
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 3
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
    assert talk(client).choices[0].logprobs is None


def test_the_same_seed_gives_the_same_tokens_and_choices_differ(client):
    several = complete(client, extra=TRAINING, n=3, prompt=[PROMPT, PROMPT[:5]])
    texts = [choice.text for choice in several.choices]
    assert [choice.index for choice in several.choices] == list(range(6))
    assert len(set(texts)) == 6
    again = complete(client, n=3, prompt=[PROMPT, PROMPT[:5]])
    assert [choice.text for choice in again.choices] == texts
    assert complete(client).choices[0].text == texts[0]
    assert complete(client, prompt=PROMPT[:5]).choices[0].text == texts[3]
    assert several.usage.prompt_tokens == len(PROMPT) + 5


def test_without_a_seed_every_answer_differs(client):
    """All 20 tokens are drawn, from 20 and more likely ones: no two answers agree by chance."""
    unending = {"allowed_token_ids": [token for token in range(TEXT.vocab_size) if token != END]}
    unseeded = {complete(client, extra=unending, seed=None).choices[0].text for _ in range(4)}
    assert len(unseeded) == 4
    equal = complete(client, extra=unending, seed=None, prompt=[PROMPT] * 4)
    assert len({choice.text for choice in equal.choices}) == 4


def test_settings_change_the_distribution(client):
    greedy = complete(client, temperature=0, logprobs=1).choices[0]
    assert complete(client, extra={"top_k": 1}).choices[0].text == greedy.text
    assert complete(client, extra={"min_p": 1.0}, seed=8).choices[0].text == greedy.text
    assert complete(client, top_p=1e-6, seed=9).choices[0].text == greedy.text
    tops = greedy.logprobs.top_logprobs
    values = greedy.logprobs.token_logprobs
    assert values == [max(top.values()) for top in tops]
    assert min(values) < -0.1  # of the full distribution, not of the certain choice
    seven, eight = TEXT.encode("78")
    only = complete(client, extra={"allowed_token_ids": [seven, eight]}).choices[0].text
    assert set(only) == {"7", "8"}
    assert len(only) == 20
    biased = complete(client, logit_bias={str(seven): 100}).choices[0].text
    assert biased == "7" * 20
    hot = complete(client, temperature=1.7).choices[0].text
    assert hot != complete(client, temperature=0.7).choices[0].text


def test_answers_end_where_they_should(client):
    free = complete(client, extra={"ignore_eos": True} | TRAINING, max_tokens=40).choices[0]
    ids = free.model_extra["token_ids"]
    assert (free.finish_reason, len(ids)) == ("length", 40)
    at = next(n for n in range(5, 40) if ids[n] not in ids[:n])
    stopped = complete(
        client, extra={"ignore_eos": True, "stop_token_ids": [ids[at]]} | TRAINING, max_tokens=40
    ).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.model_extra["stop_reason"] == ids[at]
    assert stopped.model_extra["token_ids"] == ids[: at + 1]
    assert stopped.text == TEXT.decode(ids[:at])
    said = free.text
    cut = said[10:13]
    for stop in (cut, [cut, "#"]):
        stopped = complete(client, extra={"ignore_eos": True}, max_tokens=40, stop=stop).choices[0]
        assert stopped.finish_reason == "stop"
        assert stopped.model_extra["stop_reason"] == cut
        assert stopped.text == said[: said.index(cut)]


def test_a_turn_and_its_continuation_keep_the_budget_and_the_cache(service, client):
    """Cut by its budget and continued, a session never has more tokens than were asked for."""
    session = {"session_id": "mine", "ignore_eos": True} | TRAINING
    tokens = PROMPT[::-1]  # nobody else has begun like this
    for turn in range(3):
        answer = complete(client, prompt=tokens, extra=session, max_tokens=7, seed=turn)
        ids = answer.choices[0].model_extra["token_ids"]
        assert len(ids) == 7
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached == (0 if turn == 0 else len(tokens) - 1)
        tokens += ids
    assert service.post("/release", {"session": "mine"}) == (200, {"released": "mine"})
    full = complete(client, prompt=tokens, extra={"ignore_eos": True} | TRAINING, max_tokens=500)
    room = server_lab.SHAPE["cache_length"] - len(tokens)
    assert len(full.choices[0].model_extra["token_ids"]) == room
    assert full.choices[0].finish_reason == "length"
    service.wait_for(lambda: service.get("/stats")[1]["held_slots"] == 0)


def test_an_echo_scores_the_prompt(service, client):
    """Against the training path, in the shape that evaluation harnesses read."""
    prompts = [PROMPT, PROMPT[:9], PROMPT[:1]]
    answer = complete(client, prompt=prompts, max_tokens=0, logprobs=1, extra={"echo": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert (answer.usage.completion_tokens, answer.usage.prompt_tokens) == (0, len(PROMPT) + 10)
    for prompt, choice in zip(prompts, answer.choices, strict=True):
        table = lab.rescore(server_lab.SIZE, 0, prompt, 1.0)
        found = choice.logprobs
        assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
        expected = table[np.arange(1, len(prompt)), prompt[1:]]
        np.testing.assert_allclose(found.token_logprobs[1:], expected, atol=2e-5)
        likeliest = [max(top.values()) for top in found.top_logprobs[1:]]
        np.testing.assert_allclose(likeliest, table[1:].max(axis=-1), atol=2e-5)
        assert found.tokens == [TEXT.decode([token], keep_special=True) for token in prompt]
        assert found.text_offset[1:] == [
            len("".join(found.tokens[:n])) for n in range(1, len(prompt))
        ]
        assert (choice.text, choice.finish_reason) == (TEXT.decode(prompt), "length")
    service.wait_for(lambda: service.get("/stats")[1]["held_slots"] == 0)


def test_an_echo_with_an_answer_has_both_after_one_another(client):
    settings = {"max_tokens": 5, "logprobs": 2, "n": 2, "temperature": 0.7}
    plain = complete(client, **settings)
    echoed = complete(client, extra={"echo": True}, **settings)
    assert echoed.usage.prompt_tokens == plain.usage.prompt_tokens == len(PROMPT)
    assert echoed.usage.completion_tokens == plain.usage.completion_tokens == 10
    for ours, alone in zip(echoed.choices, plain.choices, strict=True):
        assert ours.text == TEXT.decode(PROMPT) + alone.text
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            found = getattr(ours.logprobs, name)
            assert found[len(PROMPT) :] == getattr(alone.logprobs, name)
            assert len(found) == len(PROMPT) + len(alone.logprobs.tokens)
        names = ours.logprobs.tokens
        assert ours.logprobs.text_offset == [len("".join(names[:n])) for n in range(len(names))]
    bare = complete(client, extra={"echo": True}, max_tokens=0).choices[0]
    assert (bare.text, bare.logprobs) == (TEXT.decode(PROMPT), None)


def test_a_request_of_more_answers_than_slots_is_answered(service):
    more = server_lab.SHAPE["num_slots"] + 4
    with openai.OpenAI(
        base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=30
    ) as client:
        whole = complete(client, n=more, max_tokens=2)
        assert len(whole.choices) == more
        chunks = complete(client, n=more, max_tokens=2, stream=True)
        ended = joined(chunk.choices for chunk in chunks)
        assert sum(choice.finish_reason is not None for choice in ended) == more
        echoed = complete(client, [PROMPT] * more, extra={"echo": True}, max_tokens=0, logprobs=1)
        assert len(echoed.choices) == more


def test_a_body_that_is_not_packed_as_it_says_is_the_clients_mistake(service):
    asked = urllib.request.Request(
        f"{service.url}/v1/completions",
        data=b"{}",
        headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=30)
    assert refused.value.code == 400
    assert "can't be read" in json.load(refused.value)["error"]["message"]


@pytest.mark.parametrize("settings", [{}, {"stop": ["+", "12"]}, {"max_tokens": 60, "n": 3}])
def test_a_stream_says_what_the_whole_answer_says(client, settings):
    whole = complete(client, extra=TRAINING, logprobs=2, **settings)
    texts, parts, ends = {}, {}, {}
    chunks = list(
        complete(
            client,
            extra=TRAINING,
            logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
            **settings,
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        ends[choice.index] = choice.finish_reason
        if "token_ids" in choice.model_extra:
            parts.setdefault(choice.index, []).append(choice)
    for choice in whole.choices:
        assert texts[choice.index] == choice.text
        assert ends[choice.index] == choice.finish_reason
        of_choice = parts[choice.index]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            in_parts = [getattr(part.logprobs, name) for part in of_choice]
            assert joined(in_parts) == getattr(choice.logprobs, name)
        for name in TRAINING_FIELDS:
            in_parts = [part.model_extra[name] for part in of_choice]
            assert joined(in_parts) == choice.model_extra[name]
            assert all(len(part) <= lab.SHAPE["decode_chunk"] for part in in_parts)
    if "max_tokens" in settings:
        assert len(chunks) > 3 * 4  # it did come in pieces


def test_a_chat_streams(client):
    settings = {"logprobs": True, "top_logprobs": 2, "extra": {"ignore_eos": True}}
    whole = talk(client, **settings).choices[0]
    chunks = list(talk(client, stream=True, **settings))
    entries = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
    assert joined(entries) == whole.logprobs.content
    assert len(entries) > 3
    assert chunks[0].choices[0].delta.role == "assistant"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == whole.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)


def test_a_stream_is_server_sent_events_with_an_end_mark(service):
    body = {"prompt": PROMPT, "max_tokens": 9, "seed": 1, "stream": True}
    connection = service.open("/v1/completions", body)
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    *events, end, rest = answer.read().decode().split("\n\n")
    connection.close()
    assert (end, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") for event in events)
    assert [json.loads(event[6:])["object"] for event in events][-1] == "text_completion"


def test_the_client_sees_what_was_wrong(client):
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        complete(client, temperature=-1)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="99") as caught:
        complete(client, prompt=[1, 99])
    assert caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match=r"1 \.\. 65536"):
        complete(client, max_tokens=65537)
    with pytest.raises(openai.BadRequestError, match="context") as caught:
        complete(client, prompt=[1] * server_lab.SHAPE["cache_length"])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="'gpt-4'"):
        complete(client, model="gpt-4")
    assert complete(client).choices[0].text  # the service goes on
