"""Which experts read the tokens, from the answers of the turns into the trajectory."""

import dataclasses
import re

import numpy as np
import pytest
from episode_lab import RIGHT, Prepared, completion, run

from jaxrl_single import types, wire
from jaxrl_single.rollout import routing

LAYERS, CHOSEN = 2, 3


def entries(num_tokens, *, seed=0, layers=LAYERS, chosen=CHOSEN):
    """[num_tokens, layers, chosen] different experts, as lists."""
    rng = np.random.default_rng([seed, num_tokens])
    shape = (num_tokens, layers, 1)
    return rng.permuted(np.tile(np.arange(8), shape), axis=-1)[..., :chosen].tolist()


def answer(text, start, num_tokens, **options):
    ids = entries(num_tokens, **options)
    return dataclasses.replace(completion(text), expert_ids=ids, expert_start=start)


def test_turns_lie_at_their_tokens_and_the_first_reading_counts():
    plain = run(Prepared(*RIGHT))
    starts = np.flatnonzero(np.diff(plain.action_mask, prepend=False) & plain.action_mask)
    lengths = np.array([len(completion(text).tokens) for text in RIGHT])
    ends = (starts + lengths).tolist()
    # Turn 0 reads all but its last token; turn 1 begins anew, its cache was lost; turn 2 goes on
    # where turn 1 ended, but leaves two tokens out.
    first = answer(RIGHT[0], 0, ends[0] - 1, seed=1)
    second = answer(RIGHT[1], 0, ends[1] - 1, seed=2)
    third = answer(RIGHT[2], ends[1] + 1, ends[2] - 1 - (ends[1] + 1), seed=3)
    trajectory = run(Prepared(first, second, third))
    assert trajectory.error is None
    expected = np.full((plain.num_tokens, LAYERS, CHOSEN), -1)
    expected[ends[1] + 1 : ends[2] - 1] = third.expert_ids
    expected[: ends[1] - 1] = second.expert_ids
    expected[: ends[0] - 1] = first.expert_ids
    np.testing.assert_array_equal(trajectory.expert_ids, expected.astype(np.int16), strict=True)
    assert (expected[[ends[1] - 1, ends[1], -1]] == types.UNKNOWN_EXPERT).all()


def test_a_later_reading_fills_what_an_earlier_one_did_not_know():
    found = routing.Routing()
    unknown = [[[-1] * CHOSEN] * LAYERS]
    known = entries(3)
    told = {"expert_ids": known[:1] + unknown + known[2:]}
    blank = wire.Completion([], [], [], [], "length")
    found.append(dataclasses.replace(blank, **told), num_tokens=3, where="turn 0")
    assert (found.array(3)[1] == -1).all()
    later = dataclasses.replace(blank, expert_ids=entries(2, seed=5), expert_start=1)
    found.append(later, num_tokens=4, where="turn 1")
    expected = [known[0], later.expert_ids[0], known[2], *unknown]
    np.testing.assert_array_equal(found.array(4), expected)


def test_a_sampler_that_says_nothing_leaves_none():
    assert run(Prepared(*RIGHT)).expert_ids is None
    trajectory = run(Prepared(answer(RIGHT[0], 0, 5), *RIGHT[1:]))  # only the first turn says
    assert trajectory.error is None
    assert (trajectory.expert_ids[:5] >= 0).all()
    assert (trajectory.expert_ids[5:] == types.UNKNOWN_EXPERT).all()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"expert_ids": [[[0, 1], [0, 0]]]}, r"turn 0: expert_ids\[0\] is \[\[0, 1\], \[0, 0\]\]"),
        ({"expert_ids": [[[0, 1], [2]]]}, "turn 0: expert_ids: entries of different shapes"),
        ({"expert_ids": [[[0, 40_000]]]}, "turn 0: expert_ids: .* no expert's number"),
        ({"expert_ids": [[0, 1]]}, r"turn 0: expert_ids is int16\[1, 2\]"),
        ({"expert_ids": entries(3), "expert_start": -1}, "tokens -1 to 1, there are"),
        ({"expert_ids": entries(200)}, r"tokens 0 to 199, there are \d\d tokens"),
    ],
)
def test_what_is_no_choice_of_experts_is_the_samplers_error(changes, complaint):
    trajectory = run(Prepared(dataclasses.replace(completion(RIGHT[0]), **changes)))
    assert trajectory.error.kind == "sampler"
    assert re.search(complaint, trajectory.error.message.splitlines()[0])
    assert trajectory.expert_ids is None
    assert trajectory.num_actions == 0


def test_turns_of_different_models_are_the_samplers_error():
    trajectory = run(Prepared(answer(RIGHT[0], 0, 5), answer(RIGHT[1], 5, 5, layers=4)))
    assert trajectory.error.kind == "sampler"
    assert "turn 1: expert_ids has [4, 3]" in trajectory.error.message
    types.validate(trajectory)  # the first turn is kept with its routing
    assert trajectory.expert_ids.shape == (trajectory.num_tokens, LAYERS, CHOSEN)
