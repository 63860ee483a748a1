"""What the engine answers: the right numbers, the same numbers, in every order of events."""

import dataclasses

import jax
import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single import wire
from jaxrl_single.sampler import decode

LARGEST, MEAN = 2e-5, 2e-6  # of |sampler - trainer|, float32, times 1 / min(1, temperature)


# New tokens enter the cache by prefill only, by prefill or decode steps, by decode steps only.
READINGS = (0, 6, 64)


@pytest.fixture(scope="module", autouse=True)
def optimised_programs():
    """The numbers of rounding are those of the programs that users run."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    _forget_programs_and_weights()
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    _forget_programs_and_weights()


def _forget_programs_and_weights():
    """Weights, too, are made by a program; so all tests of this file have the same ones."""
    jax.clear_caches()
    lab.params_of.cache_clear()


def _differences(size, weights, tokens, answers, temperature):
    """|logged - rescored| of log-probs and of entropies, over all sampled tokens."""
    table = lab.rescore(size, weights, tokens, temperature)
    found = []
    for start, answer in answers:
        rows = table[start : start + len(answer.tokens)]
        scored = rows[np.arange(len(rows)), answer.tokens]
        entropies = -(np.exp(rows) * rows).sum(-1)
        found += [np.abs(scored - answer.logprobs), np.abs(entropies - answer.entropies)]
    return np.concatenate(found)


def _assert_agrees(size, weights, tokens, answers, temperature):
    differences = _differences(size, weights, tokens, answers, temperature)
    limit = 1 / min(1.0, temperature)
    assert differences.max() <= LARGEST * limit
    assert differences.mean() <= MEAN * limit


@pytest.mark.parametrize("max_fed_tokens", READINGS)
@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0, 1.7])
def test_logprobs_equal_the_training_path(make_engine, size, temperature, max_fed_tokens):
    """Several turns, prompts of one and of several prefill pieces; B12 at T != 1."""
    engine = make_engine(size, max_fed_tokens=max_fed_tokens)
    for ticket, prompt_length in enumerate((1, 5, 17, 35)):
        prompt = np.random.default_rng(ticket).integers(0, lab.VOCAB_SIZE, prompt_length)
        tokens, answers = lab.play(engine, ticket, prompt=prompt.tolist(), temperature=temperature)
        assert len(answers) == 3
        assert all(answer.tokens for _, answer in answers)
        _assert_agrees(size, 0, tokens, answers, temperature)


def test_tokens_come_from_the_distribution_by_the_documented_randomness(make_engine):
    """The uniform of (ticket, attempt, turn, index) falls into the token's part of the CDF."""
    engine = make_engine()
    checked = 0
    for ticket in range(12):
        tokens, answers = lab.play(engine, ticket, prompt=[ticket, 3, 5], temperature=0.8)
        table = lab.rescore("tiny_moe", 0, tokens, 0.8)
        for turn, (start, answer) in enumerate(answers):
            for index, token in enumerate(answer.tokens):
                key = jax.random.key(lab.SHAPE["seed"])
                for number in (ticket, 0, turn, index):
                    key = jax.random.fold_in(key, number)
                uniform = float(jax.random.uniform(key))
                cdf = np.cumsum(np.exp(table[start + index].astype(np.float64)))
                below = cdf[token - 1] if token else 0.0
                assert below - 1e-5 <= uniform <= cdf[token] + 1e-5
                checked += 1
    assert checked > 100


@pytest.mark.parametrize("change", [{"ticket": 1}, {"attempt": 1}, {"turn": 1}])
def test_ticket_attempt_and_turn_name_the_randomness(make_engine, change):
    engine = make_engine()
    base = {"max_new_tokens": 20}
    one, again, other = lab.run(
        engine,
        engine.submit(lab.request("a", **base)),
        engine.submit(lab.request("b", **base)),
        engine.submit(lab.request("c", **(base | change))),
    )
    assert lab.numbers(one) == lab.numbers(again)
    assert one.tokens != other.tokens


@pytest.mark.parametrize("max_fed_tokens", READINGS)
def test_an_episode_is_bitwise_the_same_whatever_else_is_sampled(make_engine, size, max_fed_tokens):
    prompt = list(range(19))
    alone = lab.play(make_engine(size, max_fed_tokens=max_fed_tokens), 7, prompt=prompt)

    engine = make_engine(size, max_fed_tokens=max_fed_tokens)
    rng = np.random.default_rng(0)
    crowd = [
        engine.submit(
            lab.request(
                f"crowd {ticket}",
                rng.integers(0, lab.VOCAB_SIZE, size=rng.integers(1, 40)).tolist(),
                ticket=ticket,
                max_new_tokens=int(rng.integers(1, 24)),
                temperature=float(rng.uniform(0.5, 2)),
            )
        )
        for ticket in range(100, 105)
    ]
    engine.step()
    crowded = lab.play(engine, 7, prompt=prompt)
    lab.run(engine, *crowd)
    assert crowded == alone


@pytest.mark.parametrize("num_slots", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_every_slot_gives_the_same_numbers(make_engine, size, num_slots):
    """XLA:CPU rounds the last rows of some dots in another way than the others."""
    engine = make_engine(size, num_slots=num_slots, prefix_cache="off")
    prompt = list(range(20))
    asked = [
        engine.submit(lab.request(f"{slot}", prompt, max_new_tokens=9)) for slot in range(num_slots)
    ]
    first, *others = lab.run(engine, *asked)
    assert others == [first] * (num_slots - 1)


def test_feeding_everything_needs_no_prefill(make_engine):
    engine = make_engine(max_fed_tokens=lab.SHAPE["cache_length"])
    lab.play(engine, 0, prompt=list(range(24)))
    mixed = make_engine(max_fed_tokens=6)
    lab.play(mixed, 0, prompt=list(range(24)))
    assert (engine.stats()["prefills"], mixed.stats()["prefills"]) == (0, 1)


def test_sessions_beyond_the_slots_wait_in_order_and_take_freed_slots(make_engine):
    engine = make_engine()
    count = 3 * lab.SHAPE["num_slots"]
    done = []
    waiting = {}
    for ticket in range(count):
        future = engine.submit(lab.request(f"s{ticket}", [1, ticket], ticket=ticket))
        future.add_done_callback(lambda _, ticket=ticket: done.append(ticket))
        waiting[ticket] = future
    for _ in range(200):
        engine.step()
        assert engine.stats()["held_slots"] <= lab.SHAPE["num_slots"]
        for ticket in done:
            engine.release(f"s{ticket}")
        if len(done) == count:
            break
    for begin in range(0, count, 8):  # within a chunk the order of the answers is free
        assert sorted(done[begin : begin + 8]) == list(range(begin, begin + 8))
    refilled = waiting[count - 1].result()
    fresh = make_engine()
    (expected,) = lab.run(fresh, fresh.submit(lab.request("new", [1, count - 1], ticket=count - 1)))
    assert lab.numbers(refilled) == lab.numbers(expected)


def test_a_held_slot_is_not_given_away_between_turns(make_engine):
    engine = make_engine(num_slots=8)
    lab.run(engine, *(engine.submit(lab.request(f"s{i}", ticket=i)) for i in range(8)))
    late = engine.submit(lab.request("late"))
    assert engine.step()
    assert not engine.step()
    assert not late.done()
    assert engine.stats()["waiting"] == 1
    engine.release("s3")
    lab.run(engine, late)


def test_stop_token_ends_the_turn_and_belongs_to_it(make_engine):
    engine = make_engine()
    (free,) = lab.run(engine, engine.submit(lab.request("free", max_new_tokens=20)))
    assert free.finish_reason == "length"
    assert len(free.tokens) == 20
    for stop_at in (0, 3, 5):
        stop = free.tokens[stop_at]
        first = free.tokens.index(stop)
        asked = lab.request("stopped", max_new_tokens=20, stop_token_ids=(stop, lab.VOCAB_SIZE))
        (stopped,) = lab.run(engine, engine.submit(asked))
        engine.release("stopped")
        assert stopped.finish_reason == "stop"
        assert stopped.tokens == free.tokens[: first + 1]
        assert stopped.logprobs == free.logprobs[: first + 1]


def test_a_stop_token_as_the_last_of_the_budget_is_a_stop(make_engine):
    engine = make_engine()
    (free,) = lab.run(engine, engine.submit(lab.request("free", max_new_tokens=1)))
    asked = lab.request("stopped", max_new_tokens=1, stop_token_ids=(free.tokens[0],))
    (stopped,) = lab.run(engine, engine.submit(asked))
    assert stopped.finish_reason == "stop"


def test_the_context_cuts_the_budget(make_engine):
    engine = make_engine()
    length = lab.SHAPE["cache_length"]
    for prompt_length, expected in ((length - 3, 3), (length - 1, 1), (length, 0), (length + 9, 0)):
        prompt = [i % lab.VOCAB_SIZE for i in range(prompt_length)]
        (answer,) = lab.run(engine, engine.submit(lab.request("long", prompt, max_new_tokens=50)))
        engine.release("long")
        assert (len(answer.tokens), answer.finish_reason) == (expected, "length")
        if expected:
            tokens = prompt + answer.tokens
            _assert_agrees("tiny_moe", 0, tokens, [(prompt_length, answer)], 1.0)


def test_tokens_that_do_not_extend_the_cache_are_read_from_scratch(make_engine):
    engine = make_engine()
    lab.play(engine, 0, prompt=[4, 5, 6, 7, 8], session="s")
    for turn, tokens in enumerate(([4, 5, 9, 7, 8, 9], [4, 5, 9], [9])):
        asked = lab.request("s", tokens, ticket=5, turn=turn)
        (answer,) = lab.run(engine, engine.submit(asked))
        fresh = dataclasses.replace(asked, session=f"fresh {turn}")
        (expected,) = lab.run(engine, engine.submit(fresh))
        assert lab.numbers(answer) == lab.numbers(expected)


def test_versions_change_between_chunks_and_are_given_per_token(make_engine):
    engine = make_engine(version=3)
    future = engine.submit(lab.request(max_new_tokens=10))
    engine.step()
    engine.load_weights(7, lab.params_of("tiny_moe", 1))
    engine.load_weights(8, lab.params_of("tiny_moe", 2))
    (answer,) = lab.run(engine, future)
    assert answer.policy_versions == [3] * 4 + [8] * 6
    assert engine.version == 8
    assert engine.stats()["swaps"] == 1


@pytest.mark.parametrize("max_fed_tokens", READINGS)
@pytest.mark.parametrize("swap", ["keep", "recompute"])
def test_numbers_after_a_swap(make_engine, size, swap, max_fed_tokens):
    """New sessions agree with the new weights; those in flight only if the cache is recomputed."""
    engine = make_engine(size, swap=swap, max_fed_tokens=max_fed_tokens)
    started = engine.submit(lab.request("running", range(9), ticket=1, max_new_tokens=20))
    (turn,) = lab.run(engine, engine.submit(lab.request("idle", range(5), ticket=2)))
    assert not started.done()
    engine.load_weights(1, lab.params_of(size, 1))
    (running,) = lab.run(engine, started)
    new_tokens, new_answers = lab.play(engine, 9, prompt=[1, 2, 3])
    _assert_agrees(size, 1, new_tokens, new_answers, 1.0)

    later = [*range(5), *turn.tokens, 2, 1]
    (second,) = lab.run(engine, engine.submit(lab.request("idle", later, ticket=2, turn=1)))
    assert set(second.policy_versions) == {1}
    worst = _differences(size, 1, later + second.tokens, [(len(later), second)], 1.0).max()

    split = running.policy_versions.index(1)
    assert 0 < split < 20
    both = [*range(9), *running.tokens]
    tail = dataclasses.replace(
        running,
        **{
            name: getattr(running, name)[split:]
            for name in ("tokens", "logprobs", "entropies", "policy_versions")
        },
    )
    worst_running = _differences(size, 1, both, [(9 + split, tail)], 1.0).max()
    if swap == "recompute":
        assert max(worst, worst_running) <= LARGEST
    else:
        assert min(worst, worst_running) > 100 * LARGEST  # else this test shows nothing


def test_the_engine_does_not_share_memory_with_the_trainer(make_engine):
    """A train step donates its parameters; the engine must have copied them."""
    first = jax.tree.map(lambda leaf: leaf + 0, lab.params_of("tiny_moe", 0))
    second = jax.tree.map(lambda leaf: leaf + 0, lab.params_of("tiny_moe", 1))
    engine = make_engine()
    engine.load_weights(1, first)
    engine.step()
    jax.tree.map(lambda leaf: leaf.delete(), first)
    lab.play(engine, 0, prompt=[1])
    as_numpy = jax.tree.map(np.array, second)
    engine.load_weights(2, as_numpy)
    jax.tree.map(lambda leaf: leaf.fill(np.nan), as_numpy)
    tokens, answers = lab.play(engine, 1, prompt=[1, 2])
    _assert_agrees("tiny_moe", 1, tokens, answers, 1.0)


def test_weights_of_another_form_are_refused_by_name(make_engine):
    engine = make_engine()
    params = lab.params_of("tiny_moe", 0)
    for changed, named in (
        ({"final_norm": {"scale": np.ones(3, np.float32)}}, r"final_norm/scale is \(\(3,\)"),
        ({"final_norm": {}}, "final_norm/scale is None"),
        ({"value_head": np.ones(1)}, r"value_head .* expected None"),
    ):
        with pytest.raises(ValueError, match=named):
            engine.load_weights(1, {**params, **changed})


def test_release_ends_a_running_and_a_waiting_request_as_cancelled(make_engine):
    engine = make_engine(num_slots=8)
    futures = [engine.submit(lab.request(f"s{i}", ticket=i, max_new_tokens=40)) for i in range(9)]
    engine.step()
    engine.release("s8")
    engine.release("s0")
    engine.release("nobody")
    engine.step()
    assert futures[8].result() == wire.Completion([], [], [], [], "cancelled")
    cut = futures[0].result()
    assert (len(cut.tokens), cut.finish_reason) == (4, "cancelled")
    assert engine.stats()["held_slots"] == 7
    lab.run(engine, engine.submit(lab.request("next")))


def test_a_future_cancelled_while_waiting_never_takes_a_slot(make_engine):
    engine = make_engine(num_slots=8)
    lab.run(engine, *(engine.submit(lab.request(f"s{i}", ticket=i)) for i in range(8)))
    cancelled, next_one = (engine.submit(lab.request(name)) for name in ("c", "n"))
    engine.step()
    assert cancelled.cancel()
    engine.release("s0")
    lab.run(engine, next_one)
    assert engine.stats()["held_slots"] == 8


def test_a_session_has_one_request_at_a_time(make_engine):
    engine = make_engine(num_slots=8)
    first, second = (engine.submit(lab.request("same", max_new_tokens=20)) for _ in range(2))
    engine.step()
    with pytest.raises(ValueError, match="session 'same' has an unfinished request"):
        second.result(timeout=0)
    lab.run(engine, first)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": []}, "at least one token"),
        ({"tokens": [1, 24]}, r"tokens\[1\] is 24, ids are 0 .. 23"),
        ({"tokens": [-1]}, r"tokens\[0\] is -1"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"max_new_tokens": 0}, "max_new_tokens 0"),
        ({"stop_token_ids": tuple(range(9))}, "9 stop_token_ids, at most 8"),
    ],
)
def test_wrong_requests_are_refused_by_field(make_engine, change, named):
    with pytest.raises(ValueError, match=f"session 'bad'.*{named}"):
        make_engine().submit(lab.request("bad", **change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"decode_chunk": 0}, "decode_chunk is 0"),
        ({"prefill_pages": ()}, r"prefill_pages is \(\), must be positive"),
        ({"prefill_pages": (4, 2)}, r"prefill_pages is \(4, 2\), must be positive and ascending"),
        ({"decode_slots": (4, 0)}, r"decode_slots is \(4, 0\), must be positive"),
        ({"cache_sizes": (0.5, 2.0)}, r"cache_sizes is \(0.5, 2.0\), must lie in"),
        ({"cache_tokens": 63}, "cache_tokens is 63, but one episode may have 64"),
        ({"prefix_cache": "on"}, r"'on', allowed are \('off', 'prompts', 'all'\)"),
        ({"swap": "drain"}, r"'drain', allowed are \('keep', 'recompute'\)"),
    ],
)
def test_wrong_sizes_are_refused_by_field(make_engine, change, named):
    with pytest.raises(ValueError, match=named):
        make_engine(**change)


def test_warm_up_compiles_everything(make_engine):
    decode.prefill.clear_cache()
    decode.decode_chunk.clear_cache()
    decode.copy_pages.clear_cache()
    decode.resize.clear_cache()
    engine = make_engine()
    engine.warm_up()
    expected = 2 + len(lab.SHAPE["prefill_pages"])  # a chunk, copies of pages, the prefills
    assert engine.stats()["compilations"] == expected
    lab.play(engine, 0, prompt=list(range(20)))
    lab.play(make_engine(version=5), 1, prompt=[1])  # another engine shares the programs
    assert engine.stats()["compilations"] == expected
    assert engine.stats()["tokens"] > 0
