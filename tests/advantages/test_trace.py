"""TRACE: the worked example, trajectories without turns, loops."""

import functools

import jax
import numpy as np
import pytest

from jaxrl_single.advantages import baselines, trace

CREDIT = {"offset": 0.1, "window": 3, "discount": 0.8}
credit = jax.jit(functools.partial(trace.turn_credit, **CREDIT))
function = jax.jit(
    functools.partial(trace.trace, **CREDIT, outcome_bonus=2.0, credit_weight=0.2, eps=0.0)
)
GOLD = np.float32([[-2, -1.5, -1.6, -0.4, np.nan]])


@pytest.mark.parametrize(
    ("bonus", "expected"),
    [
        (0.0, [0.412561596, 0.510219846, 1.223775432, 0, 0]),
        (2.0, [1.436561596, 1.790219846, 2.823775432, 0, 0]),
    ],
)
def test_golden_credit(bonus, expected):
    got = credit(GOLD, np.array([4]), np.ones(1, np.float32), outcome_bonus=bonus)
    np.testing.assert_allclose(got[0], expected, rtol=1e-5)


def test_golden_advantages():
    """A group of two with rewards 1 and -1 has A_out 1 and -1; the answer is turn 3."""
    gold = np.concatenate([GOLD, np.full_like(GOLD, np.nan)])
    index, turn_ids = np.int32([0] * 6 + [1, 1, -1]), np.int32([0, 0, 1, 2, 3, 9, 0, 7, 3])
    mask = np.array([1, 0, 1, 1, 1, 1, 1, 1, 1], bool)
    got = function(
        gold, np.array([4, 0]), np.float32([1, -1]), np.zeros(2, int), np.ones(2, bool),
        mask, index, turn_ids,
    )  # fmt: skip
    expected = [1.287312319, 0, 1.358043969, 1.564755086, 1, 1, -1, -1, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_certain_answer_is_finite():
    """L = 0: d = .1, so log(2.1 / .1) in one step."""
    gold = np.float32([[-2, 0, 0, 0, 0]])
    got = credit(gold, np.array([2]), np.zeros(1, np.float32), outcome_bonus=2.0)
    np.testing.assert_allclose(got[0], [np.log(21), 0, 0, 0, 0], rtol=1e-5)


def independent(gold, num_boundaries, outcome):
    credits = np.zeros(gold.shape)
    for n, count in enumerate(num_boundaries):
        values = [np.log((0.1 - gold[n, 0]) / (0.1 - x)) for x in gold[n, :count]]
        deltas = np.diff(values)
        for k in range(len(deltas)):
            window = deltas[k : k + 3]
            weights = 0.8 ** np.arange(len(window))
            credits[n, k] = weights @ window / weights.sum()
            if k + 3 >= len(deltas):
                credits[n, k] += 2 * 0.8 ** (len(deltas) - k) * outcome[n]
    return credits


@pytest.mark.parametrize("seed", range(3))
def test_equals_loops(seed):
    rng = np.random.default_rng(seed)
    gold, outcome = -rng.exponential(size=(6, 7)), rng.normal(size=6)
    num_boundaries = rng.permutation([0, 1, 2, 4, 6, 7])
    expected = independent(gold, num_boundaries, outcome)
    gold = np.where(np.arange(7) < num_boundaries[:, None], gold, np.inf).astype(np.float32)
    got = credit(gold, num_boundaries, np.float32(outcome), outcome_bonus=2.0)
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_without_boundaries_it_is_the_group_normalised_reward():
    rng = np.random.default_rng(0)
    index, reward = np.int32([0, 1, 2, 2]), np.float32([1, 0, 0.5])
    group, valid = np.zeros(3, int), np.ones(3, bool)
    got = function(
        rng.normal(size=(3, 5)).astype(np.float32), np.array([0, 1, 1]), reward, group, valid,
        np.ones(4, bool), index, np.zeros(4, np.int32),
    )  # fmt: skip
    outcome = np.asarray(baselines.group_normalised(reward, group, valid, eps=0.0))
    np.testing.assert_allclose(got, outcome[index], atol=1e-6)
