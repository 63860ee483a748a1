"""Memory follows the tokens, and what is done for that changes no number."""

import numpy as np
import pytest
import sampler_lab as lab

SMALL = 8  # pages of the pool below: two full episodes of 4 pages


def _numbers(episodes):
    return [[lab.numbers(answer) for answer in answers] for answers in episodes]


@pytest.mark.slow
def test_a_pool_that_is_too_small_for_all_gives_the_same_numbers(make_engine):
    """Sessions lose their pages, between turns and in the middle of one, and read them again."""
    prompts = lab.prompts_of([3, 20, 9, 33, 17, 26, 5, 18, 12, 30])
    for fed in (0, 6):
        roomy, tight = (
            make_engine(max_fed_tokens=fed),
            make_engine(max_fed_tokens=fed, cache_tokens=SMALL * lab.SHAPE["page_size"]),
        )
        expected = _numbers(lab.play_together(roomy, prompts))
        assert _numbers(lab.play_together(tight, prompts)) == expected
        assert roomy.stats()["evictions"] == 0
        assert tight.stats()["evictions"] > 5
        assert tight.stats()["pages"] == SMALL
        assert tight.stats()["prefill_tokens"] > 1.2 * roomy.stats()["prefill_tokens"]


@pytest.mark.slow
def test_a_full_episode_alone_in_a_pool_that_holds_just_one(make_engine):
    engine = make_engine(cache_tokens=lab.SHAPE["cache_length"])
    first, second = lab.run(
        engine,
        *(
            engine.submit(lab.request(f"{i}", [1] * 10, ticket=i, max_new_tokens=60))
            for i in (0, 1)
        ),
    )
    assert (len(first.tokens), len(second.tokens)) == (54, 54)


def test_the_pool_grows_with_the_tokens_and_shrinks_when_they_go(make_engine):
    fixed = make_engine()
    engine = make_engine(cache_sizes=(0.25,))
    pages, prompts = set(), lab.prompts_of([20] * 8)
    assert engine.stats()["pages"] == SMALL
    futures = [
        engine.submit(lab.request(f"{i}", prompt, ticket=i, max_new_tokens=3 + 5 * i))
        for i, prompt in enumerate(prompts)
    ]
    answers = []
    for i, future in enumerate(futures):
        answers += lab.run(engine, future)
        pages.add(engine.stats()["pages"])
        engine.release(f"{i}")
    assert pages == {4 * SMALL, SMALL}  # the last ones decode in the small pool again
    engine.step()
    assert engine.stats()["pages"] == SMALL
    for i, prompt in enumerate(prompts):
        asked = lab.request(f"{i}", prompt, ticket=i, max_new_tokens=3 + 5 * i)
        assert [lab.numbers(answers[i])] == list(
            map(lab.numbers, lab.run(fixed, fixed.submit(asked)))
        )


def test_the_last_episodes_decode_in_fewer_slots_with_the_same_tokens(make_engine):
    """More sessions than slots, so that a row's slot changes all the time."""
    full, fewer = make_engine(cache_sizes=(0.25,)), make_engine(decode_slots=(4, 6))
    prompts = lab.prompts_of([20, 3, 40, 9, 30, 31, 12, 8, 5, 17])
    expected, found = (lab.play_together(engine, prompts) for engine in (full, fewer))
    for of_full, of_fewer in zip(expected, found, strict=True):
        for one, other in zip(of_full, of_fewer, strict=True):
            assert other.tokens == one.tokens
            np.testing.assert_allclose(other.logprobs, one.logprobs, atol=2e-5)
    steps, slot_steps = (fewer.stats()[name] for name in ("steps", "slot_steps"))
    assert 4 * steps < slot_steps < 8 * steps
    assert full.stats()["slot_steps"] == 8 * full.stats()["steps"]


def test_warm_up_compiles_all_sizes(make_engine):
    engine = make_engine(cache_sizes=(0.25,), decode_slots=(4,))
    engine.warm_up()
    compiled = engine.stats()["compilations"]
    lab.play_together(engine, lab.prompts_of([20, 3, 40, 9, 30, 31, 12, 8]))
    assert engine.stats()["compilations"] == compiled
