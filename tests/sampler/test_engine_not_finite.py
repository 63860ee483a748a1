"""Finite weights whose logits overflow: such a request fails alone, and its pages harm nobody."""

import jax
import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single import param_tree
from jaxrl_single.sampler import checks
from jaxrl_single.sampler import engine as engine_lib

BAD = 9  # the values of this token overflow in the first layer
SOUND = tuple(range(BAD))  # so that no draw is to blame
COMMON = list(range(1, 8)) * 3  # more than a page


@pytest.fixture
def engine(request):
    flat = param_tree.flatten(lab.params_of("tiny_moe", 0))
    flat = {path: np.array(leaf) for path, leaf in flat.items()}
    flat["embedding/table"][:, 0] = 0  # but for BAD, the first input of that layer is 0
    flat["embedding/table"][BAD] = [8, *[0] * 63]
    flat["layers/attention/v_proj"][0, 0] = 3e38
    made = engine_lib.Engine(
        lab.policy_of("tiny_moe"), param_tree.unflatten(flat), 4, **(lab.SHAPE | request.param)
    )
    yield made
    made.stop()


READINGS = [  # by steps, by prefill, shared without regard to that
    {"max_fed_tokens": 64},
    {},
    pytest.param({"prefix_cache": "all"}, marks=pytest.mark.slow),
]


def request(session, tokens, *, ticket=0):
    return lab.request(session, tokens, ticket=ticket, allowed_token_ids=SOUND)


def step_until_done(engine, futures):
    for _ in range(200):
        if all(future.done() for future in futures):
            return
        engine.step()
    raise AssertionError("requests were not answered within 200 steps")


@pytest.mark.parametrize("engine", READINGS, indirect=True)
def test_a_request_fails_alone_and_others_keep_their_bits(engine):
    """The others share its beginning, within the page of the bad token too."""
    prompts = [[*COMMON, 3, 4], [*COMMON, BAD, 4], [*COMMON, 5, 4], [2, 3], [*COMMON, BAD]]
    alone = []
    for number in (0, 2, 3):
        asked = request(f"alone {number}", prompts[number], ticket=number)
        (answer,) = lab.run(engine, engine.submit(asked))
        engine.release(asked.session)
        alone.append(lab.numbers(answer))
    futures = [
        engine.submit(request(f"s{number}", prompt, ticket=number))
        for number, prompt in enumerate(prompts)
    ]
    step_until_done(engine, futures)
    together = [lab.numbers(futures[number].result()) for number in (0, 2, 3)]
    assert together == alone
    for number, place in ((1, len(prompts[1])), (4, len(prompts[4]))):
        problem = futures[number].exception()
        assert isinstance(problem, checks.NotFinite)
        assert (problem.place, f"'s{number}'" in str(problem)) == (place, True)
        assert "version 4" in str(problem)
    # Whoever takes the slots and pages next is well, and so is the session with other tokens.
    for number in range(5):
        engine.release(f"s{number}") if number != 1 else None
    again = [engine.submit(request("s1", prompts[0], ticket=0))]
    again += [engine.submit(request(f"t{n}", prompts[2], ticket=2)) for n in range(7)]
    step_until_done(engine, again)
    assert lab.numbers(again[0].result()) == alone[0]
    assert all(lab.numbers(future.result()) == alone[1] for future in again[1:])


@pytest.mark.parametrize("engine", READINGS[1:2], indirect=True)
def test_pages_that_a_session_left_unsampled_harm_nobody(engine):
    """It is released after its prefill, before anyone could see that it overflows."""
    long = [*range(1, 8), BAD] * 7
    future = engine.submit(request("bad", long))
    engine.step()
    engine.release("bad")
    step_until_done(engine, [future])
    futures = [engine.submit(request(f"s{n}", [n + 1] * 20, ticket=n)) for n in range(8)]
    step_until_done(engine, futures)
    for n, future in enumerate(futures):
        engine.release(f"s{n}")
        (alone,) = lab.run(engine, engine.submit(request("x", [n + 1] * 20, ticket=n)))
        engine.release("x")
        assert lab.numbers(future.result()) == lab.numbers(alone)


@pytest.mark.parametrize("engine", READINGS[:1], indirect=True)
def test_what_was_sampled_before_is_told_and_then_the_error(engine):
    parts = []
    asked = lab.request("s", [1, 2], forced_tokens=(3, 4, BAD, 5, 6, 7))
    future = engine.submit(asked, on_tokens=lambda part: parts.extend(part.tokens))
    step_until_done(engine, [future])
    assert future.exception().place == 5
    assert "after 3 sampled ones" in str(future.exception())
    assert parts == [3, 4, BAD]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_no_engine_starts_with_weights_that_are_not_finite(number):
    params = jax.tree.map(np.array, lab.params_of("tiny_moe", 0))
    params["final_norm"]["scale"][2] = number
    for given in (params, jax.tree.map(jax.numpy.asarray, params)):
        with pytest.raises(ValueError, match="final_norm/scale holds a number that is not finite"):
            engine_lib.Engine(lab.policy_of("tiny_moe"), given, 0, **lab.SHAPE)
