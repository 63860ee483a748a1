"""Which requests are let in, and where sessions are known: engines are played."""

import asyncio
import types

import pytest

from jaxrl_single.sampler.service import admission, http_errors


class Engine:
    def __init__(self):
        self.num_waiting, self.version, self.error = 0, 0, None
        self.sessions, self.released = set(), []

    def release(self, session):
        self.sessions.discard(session)
        self.released.append(session)


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def admitted(engine):
    return admission.Admission(types.SimpleNamespace(following=engine), max_waiting=2)


def turn(admitted, engine, session, *, fails=None, once=False):
    with admitted.in_flight(engine, [session], once=once):
        engine.sessions.add(session)
        if fails:
            raise fails


def test_a_session_that_has_its_slot_goes_on_although_many_wait(admitted, engine):
    turn(admitted, engine, "mine")
    engine.num_waiting = 2
    turn(admitted, engine, "mine")
    with pytest.raises(http_errors.ApiError, match="2 requests wait") as refused:
        turn(admitted, engine, "other")
    assert refused.value.status == 429


def test_a_refused_request_begins_no_session_and_ends_none(admitted, engine):
    turn(admitted, engine, "old")
    for session in ("old", "new"):
        with pytest.raises(ValueError, match="top_p"):
            turn(admitted, engine, session, fails=ValueError("top_p"))
    assert engine.sessions == {"old"}
    engine.num_waiting = 1
    admitted.make_room(0.0)
    assert engine.released == ["new", "old"]  # the only one that holds a slot


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ConnectionResetError()])
def test_a_client_that_goes_away_ends_its_session(admitted, engine, error):
    turn(admitted, engine, "mine")
    with pytest.raises(type(error)):
        turn(admitted, engine, "mine", fails=error)
    assert engine.sessions == set()


def test_a_session_that_moves_to_another_version_leaves_nothing_behind(admitted, engine):
    first, second = Engine(), Engine()
    turn(admitted, first, "mine")
    turn(admitted, second, "mine")
    assert first.sessions == set()
    assert second.sessions == {"mine"}
    turn(admitted, second, "mine")
    assert second.released == []
    turn(admitted, engine, "mine")
    admitted.release("mine")
    assert second.sessions == engine.sessions == set()


@pytest.mark.parametrize("following_last", [True, False])
def test_an_idle_session_makes_room_wherever_it_has_been(admitted, engine, following_last):
    pinned = Engine()
    for one in (pinned, engine) if following_last else (engine, pinned):
        turn(admitted, one, "mine")
    engine.num_waiting = 1
    admitted.make_room(0.0)
    assert engine.sessions == pinned.sessions == set()
    assert engine.released == ["mine"]
