"""What sessions leave behind: nothing that misleads others, or that they pay for."""

import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single import types
from jaxrl_single.sampler import restrict

EXPERTS = types.Record(experts=True)
PROMPT = lab.prompts_of([37])[0]


def test_a_repeated_request_that_is_given_up_ends_nobody_elses(make_engine):
    engine = make_engine()
    first = engine.submit(lab.request("mine", max_new_tokens=20))
    engine.step()
    repeated, other = (engine.submit(lab.request(name)) for name in ("mine", "other"))
    assert repeated.cancel()
    first, other = lab.run(engine, first, other)
    assert (len(first.tokens), len(other.tokens)) == (20, 6)


def test_a_session_may_ask_again_when_it_has_given_up_waiting(make_engine):
    engine = make_engine()
    lab.run(engine, *(engine.submit(lab.request(f"s{i}", ticket=i)) for i in range(8)))
    given_up = engine.submit(lab.request("late"))
    engine.step()
    assert given_up.cancel()
    again = engine.submit(lab.request("late"))
    engine.release("s0")
    (answer,) = lab.run(engine, again)
    assert answer.finish_reason == "length"


def test_all_that_was_handed_in_is_told_what_ended_the_engine(make_engine, monkeypatch):
    engine = make_engine()
    monkeypatch.setattr(engine._batch, "accept", lambda job: 1 / 0)
    futures = [engine.submit(lab.request(name)) for name in "abc"]
    with pytest.raises(ZeroDivisionError):
        engine.step()
    assert {type(future.exception(timeout=0)) for future in futures} == {ZeroDivisionError}


def test_an_engine_is_in_use_at_every_moment_of_a_request(make_engine, monkeypatch):
    """Or it would be stopped for another version while the request is on its way to its slot."""
    engine = make_engine()
    seen = []
    for name in ("accept", "_begin"):
        function = getattr(engine._batch, name)

        def watched(*arguments, function=function):
            seen.append(engine.in_use)
            function(*arguments)

        monkeypatch.setattr(engine._batch, name, watched)
    lab.run(engine, engine.submit(lab.request()))
    assert seen == [True, True]


def test_restrictions_end_with_their_turn(make_engine):
    """One restricted slot makes a chunk of all of them dearer."""
    engine = make_engine()
    asked = dict(top_p=0.5, top_k=3, min_p=0.1, logit_bias=((3, 1.0),), allowed_token_ids=(3, 4))
    future = engine.submit(lab.request(**asked))
    engine.step()
    limits = engine._batch._slots.limits
    assert restrict.needed(limits).any()
    lab.run(engine, future)
    assert not restrict.needed(limits).any()
    np.testing.assert_equal(vars(limits), vars(restrict.Limits.none(8)))


def _experts_of_new_weights(make_engine):
    engine = make_engine(weights=1, version=1, record=EXPERTS)
    return lab.run(engine, engine.submit(lab.request("new", PROMPT, ticket=2)))[0]


@pytest.mark.parametrize("released", [False, True])
def test_shared_tokens_bring_the_experts_of_the_weights_that_read_them(make_engine, released):
    """Of a session that has sampled, whose own answer keeps the experts that it was drawn from."""
    engine = make_engine(swap="recompute", record=EXPERTS)
    running = engine.submit(lab.request("running", PROMPT, max_new_tokens=20))
    for _ in range(4):
        engine.step()
    engine.load_weights(1, lab.params_of("tiny_moe", 1))
    engine.step()
    engine.step()
    if released:  # and the new session takes its slot over
        lab.run(engine, running)
        engine.release("running")
    (answer,) = lab.run(engine, engine.submit(lab.request("new", PROMPT, ticket=2)))
    expected = _experts_of_new_weights(make_engine)
    assert answer.tokens == expected.tokens
    assert answer.expert_ids == expected.expert_ids


def test_experts_stay_those_of_their_weights_when_pages_are_lost_after_a_swap(make_engine):
    engine = make_engine(record=EXPERTS, cache_tokens=128)
    others = [
        engine.submit(lab.request(f"{i}", lab.prompts_of([20], seed=5 + i)[0], max_new_tokens=44))
        for i in range(2)
    ]
    running = engine.submit(lab.request("running", PROMPT, max_new_tokens=27))
    while len(PROMPT) + 5 > engine._batch._slots.lengths[2]:
        engine.step()
    engine.load_weights(1, lab.params_of("tiny_moe", 1))
    lab.run(engine, *others)
    for i in range(2):
        engine.release(f"{i}")
    lab.run(engine, running)
    assert engine.stats()["evictions"] > 0
    (answer,) = lab.run(engine, engine.submit(lab.request("new", PROMPT, ticket=2)))
    assert answer.expert_ids == _experts_of_new_weights(make_engine).expert_ids


def test_time_without_work_is_no_stall(make_engine):
    engine = make_engine()
    engine.submit(lab.request("gone", max_new_tokens=40))
    engine.step()
    engine.load_weights(1, lab.params_of("tiny_moe", 1))
    engine.release("gone")
    while engine.step():
        pass
    lab.run(engine, engine.submit(lab.request("next")))
    assert engine.stats()["stall_seconds"] == 0


def test_tokens_that_are_read_again_do_not_count_as_cached(make_engine):
    engine = make_engine(swap="recompute")
    (first,) = lab.run(engine, engine.submit(lab.request("s", PROMPT)))
    longer = PROMPT + first.tokens + [1] * 6
    second = engine.submit(lab.request("s", longer, turn=1))
    engine._take_in()  # it has begun, and has read nothing
    engine.load_weights(1, lab.params_of("tiny_moe", 1))
    (answer,) = lab.run(engine, second)
    assert answer.num_cached_tokens == 0


def test_a_warm_slot_keeps_only_the_pages_that_are_of_use(make_engine):
    """A short session after a long one with the same prompt: the rest is free for others."""
    steps = {}
    for sharing in ("prompts", "off"):
        engine = make_engine(cache_tokens=64, prefix_cache=sharing)
        prompt = PROMPT[:17]
        lab.run(engine, engine.submit(lab.request("long", prompt, max_new_tokens=47)))
        engine.release("long")
        engine.step()
        before = engine.stats()["steps"]
        asked = [lab.request(f"s{i}", prompt, max_new_tokens=12, ticket=i) for i in range(2)]
        lab.run(engine, *map(engine.submit, asked))
        assert engine.stats()["evictions"] == 0
        steps[sharing] = engine.stats()["steps"] - before
    assert steps["prompts"] == steps["off"]
