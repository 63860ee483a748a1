"""What a request can ask for besides tokens, and what goes on beside it."""

import dataclasses
import itertools
import threading

import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single import types, wire

PROMPT = [4, 5, 6, 7, 8]
PER_TOKEN = ("tokens", "logprobs", "entropies", "policy_versions", "untruncated_logprobs")


def _text_of(tokens):
    return "".join(chr(ord("a") + token) for token in tokens)


def _answer(engine, **changes) -> wire.Completion:
    session = changes.pop("session", "s")
    (answer,) = lab.run(engine, engine.submit(lab.request(session, PROMPT, **changes)))
    engine.release(session)
    return lab.numbers(answer)


def _joined(lists) -> list:
    return list(itertools.chain.from_iterable(lists))


def _head(answer, count, **changes) -> wire.Completion:
    cut = {name: getattr(answer, name)[:count] for name in PER_TOKEN}
    return dataclasses.replace(answer, **cut, **changes)


def test_a_stop_string_ends_the_turn_with_the_token_that_completes_it(make_engine):
    """At every place of a turn of five chunks, and nothing changes before it."""
    engine = make_engine(text_of=_text_of)
    free = _answer(engine, max_new_tokens=18)
    text = _text_of(free.tokens)
    for count in (2, 4, 5, 11, 18):
        string = text[count - 2 : count]
        ends = text.find(string) + 2
        stopped = _answer(engine, max_new_tokens=18, stop=("?", string))
        assert stopped == _head(free, ends, finish_reason="stop", stop_reason=string)
    assert _answer(engine, max_new_tokens=18, stop=("?",)) == free


def test_a_session_goes_on_behind_a_stop_string(make_engine):
    """The tokens behind the string have been read by the cache, and are forgotten."""
    engine = make_engine(text_of=_text_of)
    text = _text_of(_answer(engine, max_new_tokens=18).tokens)
    asked = lab.request("s", PROMPT, max_new_tokens=18, stop=(text[5:7],))
    (first,) = lab.run(engine, engine.submit(asked))
    longer = PROMPT + first.tokens + [1, 2]
    (second,) = lab.run(engine, engine.submit(lab.request("s", longer, turn=1)))
    table = lab.rescore("tiny_moe", 0, longer + second.tokens, 1.0)[len(longer) :]
    scored = table[np.arange(len(second.tokens)), second.tokens]
    assert np.abs(scored - second.logprobs).max() < 2e-5


def test_the_reason_of_a_stop(make_engine):
    engine = make_engine(text_of=_text_of)
    free = _answer(engine, max_new_tokens=10)
    assert (free.finish_reason, free.stop_reason) == ("length", None)
    token = free.tokens[2]
    by_token = _answer(engine, max_new_tokens=10, stop_token_ids=(token,))
    assert (by_token.finish_reason, by_token.stop_reason) == ("stop", token)
    with pytest.raises(ValueError, match="no tokenizer"):
        make_engine().submit(lab.request(stop=("x",)))


def test_a_stop_token_in_the_prompt_is_a_token_like_any_other(make_engine):
    """B16: what a token means is known from where it stands."""
    engine = make_engine()
    prompt = [2, 11, 2, 13]
    (answer,) = lab.run(engine, engine.submit(lab.request("s", prompt, stop_token_ids=(2,))))
    assert answer.tokens
    table = lab.rescore("tiny_moe", 0, prompt + answer.tokens, 1.0)[len(prompt) :]
    scored = table[np.arange(len(answer.tokens)), answer.tokens]
    assert np.abs(scored - answer.logprobs).max() < 2e-5


def test_tokens_arrive_chunk_by_chunk(make_engine):
    engine = make_engine(text_of=_text_of, record=types.Record(topk=2))
    free = _answer(engine, max_new_tokens=11)
    string = _text_of(free.tokens)[8:10]
    for changes, count in (({}, 11), ({"stop": (string,)}, 10)):
        got = []
        asked = lab.request("s", PROMPT, max_new_tokens=11, **changes)
        future = engine.submit(asked, on_tokens=got.append)
        (answer,) = lab.run(engine, future)
        engine.release("s")
        assert [len(part.tokens) for part in got] == [4, 4, count - 8]
        assert {part.finish_reason for part in got} == {"unfinished"}
        assert answer.tokens == free.tokens[:count]
        for name in (*PER_TOKEN, "topk_tokens", "topk_logprobs"):
            assert _joined(getattr(part, name) for part in got) == getattr(answer, name), name
            assert len(getattr(answer, name)) == count, name


def test_a_listener_that_fails_harms_nobody(make_engine):
    def fail(part):
        raise OSError("the client is gone")

    engine = make_engine()
    asked = lab.request("s", PROMPT, max_new_tokens=11)
    (answer,) = lab.run(engine, engine.submit(asked, on_tokens=fail))
    engine.release("s")
    assert lab.numbers(answer) == _answer(engine, max_new_tokens=11)


def test_forced_tokens_give_the_numbers_of_drawn_ones(make_engine):
    """Rescoring is exact, restricted or not, over three turns; and a forced token may be any."""
    for changes in ({}, {"temperature": 0.7, "top_k": 5}, {"temperature": 0.0}):
        engine, scorer = make_engine(), make_engine(seed=99)
        tokens = list(PROMPT)
        for turn in range(3):
            asked = lab.request("s", tokens, turn=turn, max_new_tokens=9, **changes)
            (drawn,) = lab.run(engine, engine.submit(asked))
            forced = dataclasses.replace(asked, forced_tokens=tuple(drawn.tokens))
            (scored,) = lab.run(scorer, scorer.submit(forced))
            assert scored == drawn
            tokens += [*drawn.tokens, 3, turn]
    one, other = (_answer(scorer, max_new_tokens=1, forced_tokens=(token,)) for token in (3, 9))
    assert (one.tokens, other.tokens) == ([3], [9])
    assert one.logprobs != other.logprobs


def test_what_follows_the_forced_tokens_is_drawn(make_engine):
    """As in a turn whose draws happened to begin so: the names of the draws are the same."""
    engine = make_engine()
    (drawn,) = lab.run(engine, engine.submit(lab.request("s", PROMPT, max_new_tokens=9)))
    for count in (1, 2, 5, 9):
        begun = {"forced_tokens": tuple(drawn.tokens[:count])}
        assert _answer(engine, max_new_tokens=9, **begun) == lab.numbers(drawn)
    other = _answer(engine, max_new_tokens=9, forced_tokens=(9, 3))
    assert other.tokens[:2] == [9, 3]
    assert len(other.tokens) == 9


def test_a_seed_names_the_draws_whatever_the_engine_is_seeded_with(make_engine):
    engine = make_engine()
    first, same = _answer(engine, seed=5), _answer(make_engine(seed=99), seed=5)
    assert first == same
    assert first == _answer(make_engine(seed=5))
    assert first.tokens != _answer(engine, seed=6).tokens


def test_restricted_and_plain_requests_do_not_disturb_each_other(make_engine):
    wanted = {
        "plain": {"ticket": 1},
        "cold": {"ticket": 2, "temperature": 0.0},
        "few": {"ticket": 3, "top_p": 0.6, "min_p": 0.05, "seed": 8},
        "listed": {"ticket": 4, "allowed_token_ids": (1, 2, 3), "logit_bias": ((2, 1.5),)},
    }
    alone = {name: _answer(make_engine(), max_new_tokens=12, **wanted[name]) for name in wanted}
    engine = make_engine()
    futures = [
        engine.submit(lab.request(name, PROMPT, max_new_tokens=12, **changes))
        for name, changes in wanted.items()
    ]
    assert [lab.numbers(answer) for answer in lab.run(engine, *futures)] == list(alone.values())
    assert set(alone["listed"].tokens) <= {1, 2, 3}
    assert alone["cold"].logprobs == [0.0] * 12
    assert alone["plain"].logprobs == alone["plain"].untruncated_logprobs
    assert max(alone["few"].untruncated_logprobs) < 0


def test_a_paused_engine_takes_requests_and_weights_but_samples_nothing(make_engine):
    engine = make_engine()
    engine.start()
    engine.pause()
    future = engine.submit(lab.request("s", PROMPT))
    engine.load_weights(3, lab.params_of("tiny_moe", 1))
    while engine.version != 3 or engine.num_waiting:
        threading.Event().wait(0.01)
    assert not future.done()
    assert engine.stats()["tokens"] == 0
    engine.resume()
    assert set(future.result(timeout=60).policy_versions) == {3}


def test_weights_that_are_not_finite_are_refused_and_the_old_ones_go_on(make_engine):
    engine = make_engine()
    before = _answer(engine)
    broken = dict(lab.params_of("tiny_moe", 1))
    broken["final_norm"] = {"scale": np.full_like(broken["final_norm"]["scale"], np.nan)}
    with pytest.raises(ValueError, match="final_norm/scale holds a number that is not finite"):
        engine.load_weights(1, broken)
    assert _answer(engine) == before


def test_swaps_lose_and_repeat_no_token(make_engine):
    """The same tokens with new weights that equal the old ones, loaded at every chunk."""
    quiet = make_engine()
    expected = lab.play_together(quiet, lab.prompts_of([3, 20, 9, 33]))
    for swap in ("keep", "recompute"):
        engine = make_engine(swap=swap)
        step, versions = engine.step, iter(range(1, 10**6))

        def load_and_step(engine=engine, step=step, versions=versions):
            engine.load_weights(next(versions), lab.params_of("tiny_moe", 0))
            return step()

        engine.step = load_and_step
        answers = lab.play_together(engine, lab.prompts_of([3, 20, 9, 33]))
        for one, other in zip(_joined(answers), _joined(expected), strict=True):
            assert one.tokens == other.tokens
            assert one.policy_versions == sorted(one.policy_versions)
        assert any(len(set(answer.policy_versions)) > 2 for answer in _joined(answers))
        stats = engine.stats()
        assert stats["swaps"] >= 5  # also when there is more to read again than a step can
        assert stats["stall_seconds"] > 0


def test_experts_of_every_token_that_was_read(make_engine):
    """Their rows join to one a token, over turns, shared beginnings and pages that were lost."""
    record = types.Record(experts=True)
    layers, chosen = 2, 2
    prompts = [lab.prompts_of([37])[0]] * 3 + lab.prompts_of([5, 20, 33, 17, 26], seed=2)
    found = {}
    for name, changes in (("roomy", {}), ("tight", {"cache_tokens": 128})):
        engine = make_engine(record=record, **changes)
        found[name] = lab.play_together(engine, prompts)
    for roomy, tight in zip(_joined(found["roomy"]), _joined(found["tight"]), strict=True):
        assert roomy.expert_ids == tight.expert_ids
        assert roomy.expert_start == tight.expert_start
    for prompt, answers in zip(prompts, found["roomy"], strict=True):
        end = 0
        length = len(prompt)
        for turn, answer in enumerate(answers):
            ids = np.array(answer.expert_ids)
            assert answer.expert_start == end
            assert ids.shape == (length + len(answer.tokens) - 1 - end, layers, chosen)
            assert (np.diff(np.sort(ids), axis=-1) > 0).all()  # different experts
            end += len(ids)
            length += len(answer.tokens) + turn + 1


@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_experts_that_tokens_were_drawn_from_stand_whoever_reads_again(make_engine, swap):
    asked = dict(max_new_tokens=20, ticket=1)
    found = {}
    for versions in (1, 2):
        engine = make_engine(swap=swap, record=types.Record(experts=True))
        future = engine.submit(lab.request("a", range(9), **asked))
        engine.step()
        engine.step()
        if versions == 2:
            assert not future.done()
            engine.load_weights(1, lab.params_of("tiny_moe", 1))
        (found[versions],) = lab.run(engine, future)
    drawn = found[2].policy_versions.count(0)
    assert 0 < drawn < 20
    assert found[2].tokens[:drawn] == found[1].tokens[:drawn]
    known = 9 + drawn - 1  # the newest of them had not been read
    first, second = (np.asarray(found[versions].expert_ids) for versions in (1, 2))
    np.testing.assert_array_equal(second[:known], first[:known])
    assert (second[known:] != first[known:]).any()


def test_experts_of_a_model_without_any_are_refused(make_engine):
    with pytest.raises(ValueError, match="the model has none"):
        make_engine("tiny", record=types.Record(experts=True))
