"""Which engine samples which version, and which one makes room for another."""

import asyncio
import threading

import pytest

from jaxrl_single import types
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.stages import engines as engines_lib
from tests.sampler import sampler_lab as lab

WAIT_S = 30
TASK = types.Task("t", "1+2", "3")


class Engine:
    error = None

    def __init__(self, version=0):
        self.version, self.in_use, self.stopped = version, False, False

    def start(self):
        pass

    def stop(self):
        self.stopped = True


def real_engine(version=0):
    return engine_lib.Engine(
        lab.policy_of("tiny_moe"), lab.params_of("tiny_moe", 0), version, **lab.SHAPE
    )


class Weights:
    def fetch(self, version):
        return {"version": version}, {}


@pytest.fixture
def engines():
    return engines_lib.Engines(Engine(), lambda params, version: Engine(version), Weights())


def engine_of(engines, version):
    """An engine that is lent no longer."""
    return engines.engine_for(version).engine


def test_the_one_that_was_not_asked_for_the_longest_makes_room(engines):
    first, second = engine_of(engines, 1), engine_of(engines, 2)
    assert engine_of(engines, 1) is first
    third = engine_of(engines, 3)
    assert [engine.stopped for engine in (first, second, third)] == [False, True, False]
    assert engine_of(engines, None) is engines.following


def test_an_engine_in_use_is_never_stopped_for_another(engines):
    first, second = engine_of(engines, 1), engine_of(engines, 2)
    first.in_use = second.in_use = True
    third = engine_of(engines, 3)
    assert [engine.stopped for engine in (first, second)] == [False, False]
    first.in_use = third.in_use = False
    engine_of(engines, 4)
    assert [engine.stopped for engine in (first, second, third)] == [True, False, True]


def test_an_engine_that_somebody_is_about_to_use_is_not_stopped_either(engines):
    lent, second = engines.engine_for(1), engine_of(engines, 2)
    engine_of(engines, 3)
    engine_of(engines, 4)
    first = lent.engine
    assert (first.stopped, second.stopped) == (False, True)
    del lent
    engine_of(engines, 5)
    assert first.stopped


def test_others_are_served_while_weights_are_loaded(engines, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def fetch(version):
        begun.set()
        assert go_on.wait(WAIT_S)
        return {}, {}

    monkeypatch.setattr(engines._weights, "fetch", fetch, raising=False)
    loading = threading.Thread(target=engines.engine_for, args=(1,))
    loading.start()
    assert begun.wait(WAIT_S)
    engines.check()  # asks every engine
    go_on.set()
    loading.join(WAIT_S)
    assert engine_of(engines, 1).version == 1


def test_pinned_versions_of_many_episodes_never_lose_their_engine():
    """Each waits between its asking for the engine and its request, as for an environment."""
    made = []

    def make(params, version):
        made.append(real_engine(version))
        return made[-1]

    engines = engines_lib.Engines(real_engine(), make, Weights())

    async def episode(number):
        client = engines.client_for(types.Ticket("run", number, 0, TASK, policy_version=number % 4))
        for turn in range(2):
            answer = await client.generate(lab.request(f"{number}", turn=turn, ticket=number))
            assert set(answer.policy_versions) == {number % 4}
            await asyncio.sleep(0.01)
        await client.release(f"{number}")

    async def all_of_them():
        await asyncio.gather(*[episode(number) for number in range(12)])

    try:
        asyncio.run(all_of_them())
        assert len(made) >= 4
    finally:
        engines.following.start()
        engines.stop()


def test_an_engine_that_fails_fails_no_episode(monkeypatch):
    """The process ends; whoever comes after it plays the ticket."""
    engine = real_engine()
    engines = engines_lib.Engines(engine, None, Weights())
    monkeypatch.setattr(engine._batch, "advance", lambda: 1 / 0)
    engine.start()
    client = engines.client_for(types.Ticket("run", 0, 0, TASK))

    async def play():
        for session in "ab":  # a request that meets the failure, and one that comes after it
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.generate(lab.request(session)), 0.5)
            while engine.error is None:  # a busy machine may need longer than that
                await asyncio.sleep(0.01)
            with pytest.raises(RuntimeError, match="the sampler engine failed"):
                engines.check()

    asyncio.run(play())
    engines.stop()
