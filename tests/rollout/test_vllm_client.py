"""The client of vLLM against a server that answers as vLLM does; tests/e2e has the real one."""

import asyncio
import dataclasses
import math
import sys

import numpy as np
import pytest
from aiohttp import web

from jaxrl_single import types, wire
from jaxrl_single.rollout import vllm_client

LOGPROBS = np.log([0.5, 0.25, 0.125, 0.125])
REQUEST = wire.Request("s", 7, 0, 2, [1, 2], 6, (3,), 0.7)


class Vllm:
    """Answers requests from a script; an answer is (tokens, version label, finish_reason)."""

    def __init__(self, *script):
        self.script = list(script)
        self.seen = []
        self.gone = asyncio.Event()

    async def handle(self, request):
        message = await request.json()
        self.seen.append(message)
        answer = self.script.pop(0)
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "no such token"}}, status=answer)
        if answer == "never":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.gone.set()
                raise
        tokens, version, reason = answer
        return web.json_response({"choices": [choice(message, tokens, version, reason)]})


def choice(message, tokens, version, reason):
    wanted = message["sampling_params"]["logprobs"]
    likeliest = list(range(4)) if wanted == -1 else list(range(wanted))
    entries = [
        # The sampled one first, as vLLM has it.
        {
            "logprob": LOGPROBS[token],
            "top_logprobs": [row(token), *(row(t) for t in likeliest if t != token)],
        }
        for token in tokens
    ]
    return {
        "token_ids": tokens,
        "logprobs": {"content": entries},
        "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
        "finish_reason": reason,
        "stop_reason": tokens[-1] if reason == "stop" else None,
    }


def row(token):
    return {"token_id": token, "logprob": LOGPROBS[token], "rank": token + 1}


def play(vllm, body, **fields):
    """Runs body(client) against the server."""

    async def run():
        app = web.Application()
        app.router.add_post("/inference/v1/generate", vllm.handle)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        client = vllm_client.VllmClient(
            f"http://127.0.0.1:{port}",
            **({"context_length": 100, "vocab_size": 4, "seed": 5} | fields),
        )
        try:
            return await body(client)
        finally:
            await client.close()
            await runner.cleanup()

    return asyncio.run(run())


def generate(vllm, request=REQUEST, **fields):
    return play(vllm, lambda client: client.generate(request), **fields)


def test_interrupted_turn_goes_on_under_the_new_weights_within_its_budget():
    vllm = Vllm(([0, 2], "4", "abort"), ([], "5", "abort"), ([1, 1, 1, 2], "5", "length"))
    found = generate(vllm)
    assert found.tokens == [0, 2, 1, 1, 1, 2]
    assert found.policy_versions == [4, 4, 5, 5, 5, 5]
    np.testing.assert_allclose(found.logprobs, LOGPROBS[[0, 2, 1, 1, 1, 2]])
    assert found.untruncated_logprobs == found.logprobs
    assert found.finish_reason == "length"
    assert [m["token_ids"] for m in vllm.seen] == [[1, 2], [1, 2, 0, 2], [1, 2, 0, 2]]
    sampling = [m["sampling_params"] for m in vllm.seen]
    assert [s["max_tokens"] for s in sampling] == [6, 4, 4]
    # The rest of the turn must not repeat the draws of its beginning.
    assert sampling[0]["seed"] != sampling[1]["seed"] == sampling[2]["seed"]
    assert {s["temperature"] for s in sampling} == {0.7}


@pytest.mark.parametrize("number", [math.nan, -math.inf, None])
def test_log_probs_that_are_not_finite_are_an_error(monkeypatch, number):
    monkeypatch.setattr(sys.modules[__name__], "LOGPROBS", [-1.0, number, -1.0, -1.0])
    with pytest.raises(FloatingPointError, match="no finite logits"):
        generate(Vllm(([0, 1], "4", "length")), vocab_size=1000)


def test_stop_token_ends_the_turn_and_belongs_to_it():
    found = generate(Vllm(([0, 3], "4", "stop")))
    assert (found.tokens, found.finish_reason, found.stop_reason) == ([0, 3], "stop", 3)


def test_context_cuts_the_budget_down_to_nothing():
    vllm = Vllm(([0, 0, 0], "4", "length"))
    assert generate(vllm, context_length=5).tokens == [0, 0, 0]
    assert vllm.seen[0]["sampling_params"]["max_tokens"] == 3
    assert generate(Vllm(), context_length=2).finish_reason == "length"


def test_whole_rows_give_entropies_and_what_is_recorded():
    record = types.Record(topk=2, full=True)
    found = generate(Vllm(([3, 0], "4", "length")), record=record)
    assert found.topk_tokens == [[0, 1], [0, 1]]
    np.testing.assert_allclose(found.topk_logprobs, [LOGPROBS[:2]] * 2)
    np.testing.assert_allclose(found.full_logprobs, [LOGPROBS] * 2)
    np.testing.assert_allclose(found.entropies, [1.75 * math.log(2)] * 2)


def test_of_a_large_vocabulary_only_the_likeliest_are_asked_for():
    vllm = Vllm(([3], "4", "length"))
    found = generate(vllm, vocab_size=1000, record=types.Record(topk=2))
    assert vllm.seen[0]["sampling_params"]["logprobs"] == 2
    assert found.topk_tokens == [[0, 1]]  # the sampled one is none of them
    assert math.isnan(found.entropies[0])


def test_restricted_distribution_has_one_log_prob():
    vllm = Vllm(([0], "4", "length"))
    restricted = dataclasses.replace(REQUEST, top_k=2, logit_bias=((1, 0.5),), seed=9)
    found = generate(vllm, restricted)
    sampling = vllm.seen[0]["sampling_params"]
    assert (sampling["top_k"], sampling["logit_bias"], sampling["logprobs"]) == (2, {"1": 0.5}, 0)
    assert found.untruncated_logprobs is None


def test_unknown_weights_are_reported_and_not_sampled_from(monkeypatch):
    monkeypatch.setattr(vllm_client, "_RETRY_S", 0.01)
    reported = []
    vllm = Vllm(([0], "default", "length"), 503, ([1], "4", "length"))
    found = generate(vllm, on_unknown_weights=lambda: reported.append(True))
    assert (found.tokens, found.policy_versions, reported) == ([1], [4], [True])


def test_silence_ends_when_patience_does(monkeypatch):
    monkeypatch.setattr(vllm_client, "_RETRY_S", 0.01)
    with pytest.raises(RuntimeError, match=r"not answered for 0.1 s: .*503"):
        generate(Vllm(*[503] * 100), patience_s=0.1)


def test_released_session_ends_as_cancelled_and_the_server_hears_of_it():
    vllm = Vllm(([0, 1], "4", "abort"), "never")

    async def body(client):
        running = asyncio.create_task(client.generate(REQUEST))
        while len(vllm.seen) < 2:
            await asyncio.sleep(0.01)
        await client.release("s")
        found = await running
        await asyncio.wait_for(vllm.gone.wait(), 5)
        assert client.num_running == 0
        return found

    found = play(vllm, body)
    assert (found.tokens, found.finish_reason) == ([0, 1], "cancelled")


def test_wrong_requests_are_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"400.*no such token"):
        generate(Vllm(400))
    for change in ({"forced_tokens": (1,)}, {"policy_version": 3}, {"tokens": []}):
        with pytest.raises(ValueError, match=next(iter(change))):
            generate(Vllm(), dataclasses.replace(REQUEST, **change))
    for record in (types.Record(num_aux=1), types.Record(experts=True)):
        with pytest.raises(ValueError, match="vLLM records no further draws, no experts"):
            generate(Vllm(), record=record)
