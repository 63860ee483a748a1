"""Both clients of an engine in this process: the same answers, and every failure arrives."""

import asyncio
import dataclasses
import threading

import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler import local_client


async def _episode(client, ticket, *, pause=0.0):
    rng = np.random.default_rng(ticket)
    tokens = rng.integers(0, lab.VOCAB_SIZE, size=5).tolist()
    for turn in range(3):
        asked = lab.request(
            f"{ticket}", tokens, ticket=ticket, turn=turn, max_new_tokens=int(rng.integers(2, 9))
        )
        answer = await client.generate(asked)
        tokens = tokens + answer.tokens + [turn]
        if pause:
            await asyncio.sleep(pause)
    await client.release(f"{ticket}")
    return tokens


async def _episodes(client, count, **options):
    return await asyncio.gather(*(_episode(client, ticket, **options) for ticket in range(count)))


def test_threaded_and_inline_give_the_same_episodes(make_engine):
    inline = make_engine()
    expected = asyncio.run(_episodes(local_client.InlineClient(inline), 20))
    threaded = make_engine()
    threaded.start()
    assert asyncio.run(_episodes(local_client.LocalClient(threaded), 20)) == expected
    assert len({tuple(tokens) for tokens in expected}) == 20


def test_inline_steps_come_in_the_same_order_every_time(make_engine):
    """Ready episodes go first, so steps are few and their number repeats; loops may change."""
    steps = []
    for _ in range(2):
        engine = make_engine()
        client = local_client.InlineClient(engine)
        for _ in range(2):
            asyncio.run(_episodes(client, 20))
        steps.append((engine.stats()["chunks"], engine.stats()["prefills"]))
    assert steps[0] == steps[1]


def test_inline_waits_for_environments_that_hold_all_slots(make_engine):
    client = local_client.InlineClient(make_engine())
    assert len(asyncio.run(_episodes(client, 12, pause=0.01))) == 12


def test_swaps_beside_running_episodes(make_engine):
    """Weights arrive from another thread while episodes run; each token names its version."""
    engine = make_engine()
    engine.start()
    client = local_client.LocalClient(engine)

    async def play():
        seen = set()
        for ticket in range(40):
            asked = lab.request(f"{ticket}", ticket=ticket, max_new_tokens=30)
            answer = await client.generate(asked)
            await client.release(f"{ticket}")
            assert answer.policy_versions == sorted(answer.policy_versions)
            seen |= set(answer.policy_versions)
        return seen

    finished = threading.Event()

    def publish():
        version = 0
        while not finished.is_set():
            version += 1
            engine.load_weights(version, lab.params_of("tiny_moe", version % 2))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        assert len(asyncio.run(play())) > 5
    finally:
        finished.set()
        publisher.join()


def _broken_policy(policy):
    """Fails in the middle of its second chunk program, as a device error would."""

    def decode(*args):
        raise RuntimeError("the device is gone")

    return dataclasses.replace(policy, decode=decode)


def _broken_engine():
    return engine_lib.Engine(
        _broken_policy(lab.policy_of("tiny_moe")), lab.params_of("tiny_moe", 0), 0, **lab.SHAPE
    )


def test_an_error_in_the_thread_reaches_every_waiting_episode():
    engine = _broken_engine()
    client = local_client.LocalClient(engine)

    async def play():
        asked = [client.generate(lab.request(f"{i}", ticket=i)) for i in range(20)]
        answers = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(0)
        engine.start()
        return await asyncio.wait_for(answers, timeout=60)

    outcomes = asyncio.run(play())
    assert [str(outcome) for outcome in outcomes] == ["the device is gone"] * 20
    assert str(engine.error) == "the device is gone"
    with pytest.raises(RuntimeError, match=r"engine failed.*the device is gone"):
        engine.submit(lab.request())
    with pytest.raises(RuntimeError, match="engine failed"):
        engine.load_weights(1, lab.params_of("tiny_moe", 0))
    engine.release("0")  # ignored: clean-up code calls it after any failure
    engine.stop()


def test_an_error_inline_reaches_every_waiting_episode():
    client = local_client.InlineClient(_broken_engine())

    async def play():
        asked = [client.generate(lab.request(f"{i}", ticket=i)) for i in range(20)]
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), timeout=60)

    assert [str(outcome) for outcome in asyncio.run(play())] == ["the device is gone"] * 20


def test_stop_fails_what_is_unfinished_and_ends_the_thread(make_engine):
    engine = make_engine()
    unfinished = [engine.submit(lab.request(f"{i}", ticket=i)) for i in range(20)]
    engine.step()
    engine.step()
    engine.start()
    engine.stop()
    for future in unfinished:
        if future.exception(timeout=0):
            assert "was stopped" in str(future.exception())
    assert any(future.exception() for future in unfinished)
    assert not any(thread.name == "sampler-engine" for thread in threading.enumerate())
    with pytest.raises(RuntimeError, match="was stopped"):
        engine.submit(lab.request())


def test_an_episode_that_is_cancelled_frees_its_slot(make_engine):
    engine = make_engine()
    engine.start()
    client = local_client.LocalClient(engine)

    async def play():
        async def abandoned():
            try:
                await client.generate(lab.request("gone", max_new_tokens=50))
            finally:
                await client.release("gone")

        task = asyncio.create_task(abandoned())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.generate(lab.request("next"))

    asyncio.run(play())
    assert engine.error is None
    assert engine.stats()["held_slots"] == 1
