"""What the sampler records beside the tokens, from the answers into the trajectory."""

import dataclasses
import math
import re

import numpy as np
import pytest
from episode_lab import RIGHT, Prepared, completion, run

from jaxrl_single import types, wire


def recorded(text, *, seed=0, draws=2, likeliest=3, **changes):
    answer = completion(text)
    rng = np.random.default_rng([seed, len(answer.tokens)])

    def rows(width, ids):
        shape = (len(answer.tokens), width)
        found = rng.integers(0, 32, shape) if ids else np.float32(-rng.random(shape))
        return found.tolist()

    fields = {
        "aux_tokens": rows(draws, True),
        "aux_logprobs": rows(draws, False),
        "topk_tokens": rows(likeliest, True),
        "topk_logprobs": rows(likeliest, False),
        "full_logprobs": rows(32, False),
    }
    fields["full_logprobs"][0][7] = -math.inf
    return dataclasses.replace(answer, **(fields | changes))


def test_rows_of_all_turns_follow_one_another():
    answers = [recorded(text, seed=seed) for seed, text in enumerate(RIGHT)]
    trajectory = run(Prepared(*answers))
    assert trajectory.error is None
    for name, dtype in types.ACTION_FIELDS.items():
        expected = np.array([row for answer in answers for row in getattr(answer, name)], dtype)
        np.testing.assert_array_equal(getattr(trajectory, name), expected, strict=True)
    assert len(trajectory.aux_tokens) == trajectory.num_actions


def test_nothing_recorded_stays_none():
    assert run(Prepared(*RIGHT)).action_arrays == {}


def test_a_last_turn_without_tokens_brings_no_rows():
    empty = wire.Completion([], [], [], [], "length")
    trajectory = run(Prepared(recorded(RIGHT[0]), empty))
    assert trajectory.error is None
    assert trajectory.full_logprobs.shape == (len(completion(RIGHT[0]).tokens), 32)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"aux_tokens": None}, r"turn 0: aux_tokens and aux_logprobs have the shapes \[None, \(7"),
        ({"topk_tokens": [[1]] * 7}, r"topk_tokens and topk_logprobs have the shapes \[\(7, 1\)"),
        ({"full_logprobs": [[-1.0]] * 6}, r"full_logprobs is float32\[6, 1\], expected .*\[7, "),
        ({"full_logprobs": []}, r"full_logprobs is float32\[0\]"),
        ({"full_logprobs": [[]] * 7}, r"full_logprobs is float32\[7, 0\]"),
        ({"full_logprobs": [[-1.0]] * 6 + [[-1.0, -2.0]]}, "full_logprobs: rows of different"),
        ({"full_logprobs": [[math.nan]] * 7}, r"full_logprobs\[0, 0\] is nan, expected a log-prob"),
        ({"full_logprobs": [[-1.0, 0.1]] * 7}, r"full_logprobs\[0, 1\] is 0.1"),
        ({"aux_logprobs": [[-1.0, -math.inf]] * 7}, r"aux_logprobs\[0, 1\] is -inf, .* finite"),
        ({"aux_tokens": [[3, -1]] * 7}, r"aux_tokens\[0, 1\] is -1, expected a token id"),
    ],
)
def test_rows_that_cannot_be_trained_are_the_samplers_error(changes, complaint):
    trajectory = run(Prepared(recorded(RIGHT[0], **changes)))
    assert trajectory.error.kind == "sampler"
    assert re.search(complaint, trajectory.error.message.splitlines()[0])
    assert trajectory.num_actions == 0


def test_turns_that_record_different_widths_are_the_samplers_error():
    trajectory = run(Prepared(recorded(RIGHT[0]), recorded(RIGHT[1], draws=4)))
    assert trajectory.error.kind == "sampler"
    assert "turn 1: the sampler recorded rows of {'aux_tokens': 4" in trajectory.error.message
    types.validate(trajectory)  # the first turn is kept with its rows
    assert trajectory.aux_tokens.shape == (7, 2)
