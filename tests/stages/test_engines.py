"""Which engine samples which version, and which one makes room for another."""

import threading

import pytest

from jaxrl_single.stages import engines as engines_lib

WAIT_S = 30


class Engine:
    error = None

    def __init__(self, version=0):
        self.version, self.in_use, self.stopped = version, False, False

    def start(self):
        pass

    def stop(self):
        self.stopped = True


class Weights:
    def fetch(self, version):
        return {"version": version}, {}


@pytest.fixture
def engines():
    return engines_lib.Engines(Engine(), lambda params, version: Engine(version), Weights())


def test_the_one_that_was_not_asked_for_the_longest_makes_room(engines):
    first, second = engines.engine_for(1), engines.engine_for(2)
    assert engines.engine_for(1) is first
    third = engines.engine_for(3)
    assert [engine.stopped for engine in (first, second, third)] == [False, True, False]
    assert engines.engine_for(None) is engines.following


def test_an_engine_in_use_is_never_stopped_for_another(engines):
    first, second = engines.engine_for(1), engines.engine_for(2)
    first.in_use = second.in_use = True
    third = engines.engine_for(3)
    assert [engine.stopped for engine in (first, second)] == [False, False]
    first.in_use = third.in_use = False
    engines.engine_for(4)
    assert [engine.stopped for engine in (first, second, third)] == [True, False, True]


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
    assert engines.engine_for(1).version == 1
