"""The service's own endpoints: wire messages, limits, refusals, and clients that go away."""

import asyncio
import json
import time

import aiohttp
import jax
import openai
import pytest
import sampler_lab as lab
import server_lab

from jaxrl_single import wire
from jaxrl_single.sampler.service import access
from jaxrl_single.sampler.service import server as server_lib
from jaxrl_single.weights import filesystem

PROMPT = [1, 2, 3]
LONG = {"prompt": PROMPT, "max_tokens": 100, "ignore_eos": True, "seed": 1}


@pytest.fixture
def service():
    """Of an engine in its own thread."""
    engine = server_lab.make_engine()
    engine.start()
    with server_lab.serving(engine) as service:
        yield service


@pytest.fixture
def by_hand():
    """Of an engine that moves when the test steps it."""
    with server_lab.serving(server_lab.make_engine(), max_waiting=3) as service:
        yield service


def generate(service, **changes):
    return service.post("/generate", wire.request_to_json(lab.request(**changes)))


def test_generate_is_exact(service):
    """What comes over HTTP is bit for bit what the engine says, records and versions included."""
    for settings in ({}, {"temperature": 0.0}, {"top_k": 3, "seed": 5}, {"forced_tokens": (4, 5)}):
        budget = len(settings.get("forced_tokens", ())) or 9
        asked = lab.request(max_new_tokens=budget, **settings)
        expected = service.engine.submit(asked).result()
        service.engine.release(asked.session)
        status, answer = service.post("/generate", wire.request_to_json(asked))
        assert status == 200
        found = wire.completion_from_json(answer)
        service.post("/release", {"session": asked.session})
        for name in ("tokens", "logprobs", "untruncated_logprobs", "entropies", "topk_logprobs"):
            assert getattr(found, name) == getattr(expected, name)
        assert found.policy_versions == [0] * budget


def test_a_session_keeps_its_cache_until_it_is_released(service):
    _, first = generate(service)
    status, second = generate(service, tokens=(1, 2, 3, *first["tokens"], 4), turn=1)
    assert status == 200
    assert second["num_cached_tokens"] >= 3
    assert service.get("/stats")[1]["held_slots"] == 1
    assert service.post("/release", {"session": "s"})[0] == 200
    service.wait_for(lambda: service.get("/stats")[1]["held_slots"] == 0)
    assert service.post("/release", {"session": "unknown"})[0] == 200


def test_health_version_and_stats(service):
    assert service.get("/health") == (200, {"status": "ok", "version": 0})
    assert service.get("/version") == (200, {"version": 0})
    generate(service)
    status, stats = service.get("/stats")
    assert (status, stats["tokens"], stats["requests_in_flight"]) == (200, 6, 0)


def test_new_weights_serve_and_wrong_ones_are_refused(tmp_path):
    store = filesystem.FileWeights(str(tmp_path), "run")
    for version in (1, 2, 3):
        store.publish(version, lab.params_of(server_lab.SIZE, version), metadata={})
    torn = max(tmp_path.rglob("*3*/*.safetensors"))
    torn.write_bytes(torn.read_bytes()[:-7] + b"garbage")
    store.publish(
        4, jax.tree.map(lambda leaf: leaf[..., :1], lab.params_of("tiny_moe", 0)), metadata={}
    )
    engine = server_lab.make_engine()
    engine.start()
    with server_lab.serving(engine, store) as service:
        assert service.post("/load_weights", {"version": 1}) == (200, {"version": 1})
        service.wait_for(lambda: service.get("/version")[1] == {"version": 1})
        for version in (3, 4, None, 9):
            status, answer = service.post("/load_weights", {"version": version})
            assert (status, answer["error"]["code"]) == (400, "invalid_weights")
        assert service.post("/load_weights", {"version": "2"})[0] == 400
        status, answer = generate(service)
        assert (status, answer["policy_versions"]) == (200, [1] * 6)
        assert service.post("/load_weights", {"version": 2}) == (200, {"version": 2})
        service.wait_for(lambda: service.get("/version")[1] == {"version": 2})
        assert generate(service, session="t")[1]["policy_versions"] == [2] * 6
        assert generate(service, session="u", policy_version=2)[0] == 200
        status, answer = generate(service, session="v", policy_version=7)
        assert (status, answer["error"]["param"]) == (400, "policy_version")


def test_paused_requests_wait(service):
    assert service.post("/pause") == (200, {"paused": True})
    connection = service.open("/v1/completions", LONG)
    service.wait_for(lambda: service.num_in_flight() == 1)
    time.sleep(0.2)  # many chunks, if it went on
    assert service.engine.stats()["tokens"] == 0
    assert service.get("/health")[0] == 200
    assert service.post("/resume") == (200, {"paused": False})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert answer["usage"]["completion_tokens"] == 100


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("session", [{}, {"session_id": "mine"}])
def test_a_client_that_goes_away_frees_its_slot(by_hand, stream, session):
    connection = by_hand.open("/v1/completions", LONG | session | {"stream": stream})
    sampled = by_hand.engine.stats
    by_hand.wait_for(lambda: sampled()["tokens"] >= 8, step=True)
    assert sampled()["held_slots"] == 1
    connection.close()
    by_hand.wait_for(lambda: by_hand.num_in_flight() == 0)
    before = sampled()["tokens"]
    by_hand.engine.step()
    assert (sampled()["held_slots"], sampled()["active_slots"]) == (0, 0)
    assert sampled()["tokens"] == before < 100


def test_a_client_that_goes_away_while_it_waits_is_forgotten(by_hand):
    connection = by_hand.open("/v1/completions", LONG | {"n": 2})
    by_hand.wait_for(lambda: by_hand.engine.num_waiting == 2)
    connection.close()
    by_hand.wait_for(lambda: by_hand.num_in_flight() == 0)
    by_hand.engine.step()
    assert by_hand.engine.stats()["held_slots"] == 0
    assert by_hand.engine.num_waiting == 0


def test_too_many_waiting_requests_are_told_to_come_back(by_hand):
    waiting = [by_hand.open("/v1/completions", LONG) for _ in range(3)]
    by_hand.wait_for(lambda: by_hand.engine.num_waiting == 3)
    status, answer, headers = by_hand.request("POST", "/v1/completions", LONG)
    assert (status, answer["error"]["code"]) == (429, "too_many_waiting")
    assert int(headers["Retry-After"]) >= 1
    assert generate(by_hand)[0] == 429
    by_hand.wait_for(lambda: by_hand.engine.num_waiting == 0, step=True)
    waiting.append(by_hand.open("/v1/completions", LONG))
    by_hand.wait_for(lambda: by_hand.num_in_flight() == 0, step=True)
    assert [connection.getresponse().status for connection in waiting] == [200] * 4
    for connection in waiting:
        connection.close()


def test_a_session_has_one_request_at_a_time(by_hand):
    message = wire.request_to_json(lab.request())
    connection = by_hand.open("/generate", message)
    by_hand.wait_for(lambda: by_hand.engine.num_waiting == 1)
    status, answer, headers = by_hand.request("POST", "/generate", message)
    assert (status, answer["error"]["code"]) == (409, "session_busy")
    assert "Retry-After" in headers
    by_hand.wait_for(lambda: by_hand.num_in_flight() == 0, step=True)
    assert connection.getresponse().status == 200
    connection.close()


def test_wrong_requests_get_their_code_and_the_engine_goes_on(service):
    wrong = [
        (400, "/generate", b"{"),
        (400, "/generate", b"[1]"),
        (400, "/generate", b"\xff"),
        (400, "/generate", b"[" * 100_000),
        (400, "/generate", {}),
        (400, "/generate", wire.request_to_json(lab.request()) | {"tokens": "abc"}),
        (400, "/generate", wire.request_to_json(lab.request(tokens=(1, lab.VOCAB_SIZE)))),
        (400, "/generate", wire.request_to_json(lab.request(tokens=(10**30,)))),
        (400, "/generate", wire.request_to_json(lab.request(tokens=()))),
        (400, "/generate", wire.request_to_json(lab.request(max_new_tokens=10**9))),
        (400, "/generate", wire.request_to_json(lab.request()) | {"surprise": 1}),
        (400, "/v1/completions", b'{"prompt": [1], "temperature": NaN}'),
        (400, "/v1/completions", b"not json"),
        (400, "/v1/completions", {"prompt": [lab.VOCAB_SIZE]}),
        (400, "/v1/completions", {"prompt": [1], "stop_token_ids": list(range(9))}),
        (400, "/v1/completions", {"prompt": [1], "allowed_token_ids": [99]}),
        (400, "/v1/completions", {"prompt": [1], "logit_bias": {"99": 1}}),
        (400, "/v1/chat/completions", {"messages": [{"role": "system", "content": "1"}]}),
        (400, "/release", {"session": 5}),
        (404, "/v2/completions", {}),
        (405, "/health", {}),
        (413, "/v1/completions", {"prompt": "1" * 2**24}),
    ]
    for status, path, body in wrong:
        found, answer = service.post(path, body)
        assert (found, path) == (status, path), (body, answer)
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["message"]
    assert generate(service)[0] == 200
    assert service.get("/stats")[1]["held_slots"] == 1


def test_an_engine_that_failed_is_not_healthy():
    engine = server_lab.make_engine()
    engine.start()
    with server_lab.serving(engine) as service:
        stream = service.open("/v1/completions", LONG | {"stream": True})
        answer = stream.getresponse()
        engine.stop()
        events = answer.read().decode()
        stream.close()
        assert "[DONE]" not in events
        assert "stopped" in events
        for path, body in (
            ("/generate", wire.request_to_json(lab.request())),
            ("/v1/completions", LONG),
        ):
            status, answer = service.post(path, body)
            assert (status, answer["error"]["code"]) == (503, "sampler_unavailable")


def test_before_the_first_weights_nothing_is_sampled():
    with server_lab.serving(server_lab.make_engine(version=-1)) as service:
        status, answer, headers = service.request("POST", "/v1/completions", LONG)
        assert (status, answer["error"]["code"]) == (503, "no_weights")
        assert "Retry-After" in headers
        assert service.get("/health") == (503, {"status": "waiting for weights", "version": -1})


def test_the_token_is_asked_for():
    with server_lab.serving(server_lab.make_engine(), token="s3cret") as service:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            status, answer, found = service.request("GET", "/v1/models", headers=headers)
            assert (status, answer["error"]["type"]) == (401, "authentication_error")
            assert found["WWW-Authenticate"] == "Bearer"
            assert service.request("POST", "/pause", headers=headers)[0] == 401
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="s3cret") as client:
            assert [model.id for model in client.models.list()] == ["policy"]
        assert service.get("/health")[0] == 200


def test_others_may_not_reach_it_without_a_token(monkeypatch, tmp_path):
    router = server_lab.Router(None)
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(ValueError, match="needs a token"):
            server_lib.Server(router, server_lab.TEXT, host=host)
        server_lib.Server(router, server_lab.TEXT, host=host, token="s3cret")
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        server_lib.Server(router, server_lab.TEXT, host=host)
    with pytest.raises(ValueError, match="empty"):
        server_lib.Server(router, server_lab.TEXT, token="")
    with pytest.raises(ValueError, match="max_waiting is 0"):
        server_lib.Server(router, server_lab.TEXT, max_waiting=0)
    monkeypatch.delenv(access.TOKEN_VARIABLE, raising=False)
    assert access.read_token() is None
    monkeypatch.setenv(access.TOKEN_VARIABLE, "from the environment")
    assert access.read_token() == "from the environment"
    path = tmp_path / "token"
    path.write_text("from a file\n")
    assert access.read_token(str(path)) == "from a file"
    path.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        access.read_token(str(path))


def test_five_hundred_at_once_on_thirty_two_slots(service):
    """Every one is answered, with what it gets alone, and no slot is left."""
    body = {"max_tokens": 4, "ignore_eos": True, "return_token_ids": True}

    async def ask(http, number):
        prompt = [1, 2, number % 20]
        async with http.post(
            "/v1/completions", json=body | {"prompt": prompt, "seed": number}
        ) as r:
            return r.status, (await r.json())["choices"][0]["token_ids"]

    async def ask_all():
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(service.url, connector=connector) as http:
            alone = [await ask(http, number) for number in (0, 250, 499)]
            return alone, await asyncio.gather(*[ask(http, number) for number in range(500)])

    alone, answers = asyncio.run(ask_all())
    assert [status for status, _ in answers] == [200] * 500
    assert all(len(tokens) == 4 for _, tokens in answers)
    assert alone == [answers[0], answers[250], answers[499]]
    service.wait_for(lambda: service.get("/stats")[1]["held_slots"] == 0)
    assert service.num_in_flight() == 0
