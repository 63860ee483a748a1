"""The client of samplers over HTTP: nothing is lost with a sampler, and nothing is asked twice."""

import asyncio
import dataclasses

import pytest

from jaxrl_single import wire
from jaxrl_single.rollout import http_client
from jaxrl_single.sampler.service import http_errors
from tests.rollout import http_lab as lab


def check(body, *samplers, **options):
    """Runs `await body(client, *samplers)` while the samplers serve."""

    async def run():
        async with lab.serving(*samplers) as urls:
            client = http_client.HttpClient(lambda: urls, **{"patience_s": 5.0, **options})
            try:
                await body(client, *samplers)
            finally:
                await client.close()

    asyncio.run(run())


def test_request_and_answer_are_exact():
    asked = lab.request(temperature=0.7, seed=5, top_k=3, logit_bias=((2, -0.1),), stop=("a",))
    answer = dataclasses.replace(
        lab.completion(5, 6, version=3), topk_tokens=[[1], [2]], topk_logprobs=[[-0.1], [-1e-7]]
    )

    async def body(client, sampler):
        assert await client.generate(asked) == answer
        assert sampler.requests == [asked]
        assert "Authorization" not in sampler.headers[0]

    check(body, lab.Sampler(answer))


def test_the_token_is_shown_and_a_version_can_be_pinned():
    async def body(client, sampler):
        pinned = client.pinned(4)
        await pinned.generate(lab.request("a"))
        await client.generate(lab.request("b"))
        assert [request.policy_version for request in sampler.requests] == [4, None]
        assert sampler.headers[0]["Authorization"] == "Bearer secret"
        await pinned.release("a")
        assert sampler.released == ["a"]

    check(body, lab.Sampler(), token="secret")


def test_sessions_stay_and_new_ones_go_to_the_least_loaded():
    async def body(client, first, second):
        for session in ("a", "b", "c", "a", "b", "a"):
            await client.generate(lab.request(session))
        assert [request.session for request in first.requests] == ["a", "c", "a", "a"]
        assert [request.session for request in second.requests] == ["b", "b"]
        await client.release("a")
        await client.release("c")
        await client.release("unknown")
        assert (first.released, second.released) == (["a", "c"], [])
        await client.generate(lab.request("d"))
        assert first.requests[-1].session == "d"

    check(body, lab.Sampler(), lab.Sampler())


def test_a_full_sampler_is_asked_again_when_it_says_so():
    full = (429, "too many wait", {"Retry-After": "0.2"})

    async def body(client, sampler):
        began = asyncio.get_running_loop().time()
        assert (await client.generate(lab.request())).tokens == [9]
        assert asyncio.get_running_loop().time() - began >= 0.4
        assert [request.session for request in sampler.requests] == ["7-0"] * 3

    check(body, lab.Sampler(full, full))


def test_only_a_session_without_a_cache_leaves_a_full_sampler():
    full = (429, "too many wait", {"Retry-After": "0.1"})

    async def body(client, first, second):
        await client.generate(lab.request("new"))  # the first is full: it goes to the second
        assert (len(first.requests), len(second.requests)) == (1, 1)
        second.answers = [full]
        await client.generate(lab.request("new", turn=1))  # its cache is there
        assert (len(first.requests), len(second.requests)) == (1, 3)

    check(body, lab.Sampler(full), lab.Sampler())


@pytest.mark.parametrize("loss", ["drop", (500, "a mistake", {}), (503, "engine failed", {})])
def test_another_sampler_goes_on_with_a_lost_session(loss):
    async def body(client, first, second):
        await client.generate(lab.request(turn=0))
        first.answers = [loss]
        answer = await client.generate(lab.request(turn=1, tokens=[3, 4, 9, 5]))
        assert answer.tokens == [9]
        assert second.requests == [lab.request("7-0~1", turn=1, tokens=[3, 4, 9, 5])]
        await client.generate(lab.request(turn=2))
        assert second.requests[-1].session == "7-0~1"
        await client.release("7-0")
        assert (first.released, second.released) == ([], ["7-0~1"])

    check(body, lab.Sampler(), lab.Sampler())


def test_a_lost_sampler_is_asked_again_when_it_is_the_only_one():
    """Under another name: it may not have noticed that its client is gone."""

    async def body(client, sampler):
        assert (await client.generate(lab.request())).tokens == [9]
        assert [request.session for request in sampler.requests] == ["7-0", "7-0~1", "7-0~2"]

    check(body, lab.Sampler("drop", "drop"))


def test_a_sampler_that_comes_back_elsewhere_is_found():
    async def run():
        old, new = lab.Sampler(), lab.Sampler()
        urls = []
        client = http_client.HttpClient(lambda: urls, patience_s=10.0)
        await old.start()
        urls.append(old.url)
        await client.generate(lab.request(turn=0))
        await old.close()
        waiting = asyncio.create_task(client.generate(lab.request(turn=1)))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await new.start()
        urls[:] = [new.url]
        assert (await waiting).tokens == [9]
        assert [request.turn for request in new.requests] == [1]
        await client.close()
        await new.close()

    asyncio.run(run())


def test_patience_ends_with_the_last_failure_as_the_cause():
    async def body(client, sampler):
        sampler.answers = [(503, "the engine burned down", {})] * 1000
        words = r"(?s)0\.4 s.*sampler_patience_s.*127.0.0.1.*the engine burned down"
        with pytest.raises(RuntimeError, match=words) as failed:
            await client.generate(lab.request())
        assert "the engine burned down" in str(failed.value.__cause__)
        assert len(sampler.requests) >= 2
        sampler.answers = []
        assert (await client.generate(lab.request("8-0"))).tokens == [9], "it recovers"

    check(body, lab.Sampler(), patience_s=0.4)


def test_without_any_sampler_the_request_fails_after_its_patience():
    client = http_client.HttpClient(lambda: [], patience_s=0.3)
    with pytest.raises(RuntimeError, match="none is well"):
        asyncio.run(client.generate(lab.request()))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((400, "tokens: 99 is not in the vocabulary", {}), "answers 400: tokens: 99"),
        ((401, "this sampler needs its token", {}), "answers 401: this sampler"),
        ((413, "too large", {}), "answers 413"),
    ],
)
def test_a_refused_request_is_an_error_at_once(answer, words):
    async def body(client, sampler):
        with pytest.raises(ValueError, match=words):
            await client.generate(lab.request())
        assert len(sampler.requests) == 1

    check(body, lab.Sampler(answer))


def test_weights_that_compute_nothing_finite_are_no_fault_of_the_sampler():
    """The error of one episode: asking again, or another sampler, would give the same."""

    async def body(client, sampler):
        with pytest.raises(FloatingPointError, match="answers 500: not finite for token 7"):
            await client.generate(lab.request())
        assert len(sampler.requests) == 1
        assert (await client.generate(lab.request())).tokens == [9]

    check(body, lab.Sampler((500, "not finite for token 7", {}, http_errors.NOT_FINITE)))


def test_an_answer_that_is_no_completion_is_refused():
    async def body(client, sampler):
        with pytest.raises(wire.InvalidMessage, match="logprobs has 1 entries"):
            await client.generate(lab.request())

    wrong = dataclasses.replace(lab.completion(5, 6), logprobs=[-1.0])
    check(body, lab.Sampler(wrong))


def test_a_request_that_is_cancelled_closes_its_connection():
    async def body(client, sampler):
        running = asyncio.create_task(client.generate(lab.request()))
        await lab.until(lambda: sampler.requests)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await lab.until(lambda: sampler.left)
        assert sampler.left == ["7-0"]

    check(body, lab.Sampler("hang"))


def test_release_ends_a_request_that_waits_for_a_sampler():
    async def body(client, sampler):
        waiting = asyncio.create_task(client.generate(lab.request()))
        await lab.until(lambda: sampler.requests)
        await client.release("7-0")
        assert (await waiting).finish_reason == "cancelled"
        assert len(sampler.requests) == 1

    check(body, lab.Sampler((429, "full", {"Retry-After": "0.3"})))


def test_release_does_not_fail_with_the_sampler():
    async def body(client, sampler):
        await client.generate(lab.request())
        await sampler.close()
        await client.release("7-0")

    check(body, lab.Sampler())


def test_a_session_that_is_released_while_its_sampler_goes_is_counted_once():
    async def body(client, sampler):
        running = asyncio.create_task(client.generate(lab.request()))
        await lab.until(lambda: sampler.requests)
        await client.release("7-0")
        await sampler.close()
        assert (await running).finish_reason == "cancelled"
        assert set(client._choice._sessions.values()) <= {0}

    check(body, lab.Sampler("hang"))
