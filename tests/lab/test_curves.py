"""Curves of single tokens: known coefficients, and something for every row of the table."""

import numpy as np
import pytest

from jaxrl_single.algorithms import table
from jaxrl_single.lab import curves

RATIOS = np.array([0.5, 0.75, 1.0, 1.25, 2.0, 7.0])


def coefficients(name, advantages, **overrides):
    algorithm = table.get(name, {key.replace("__", "."): v for key, v in overrides.items()})
    return curves.coefficients(
        algorithm, np.log(RATIOS), advantages, rollout_logprob=-2.5, entropy=1.0
    )


def test_sao_is_ratio_times_advantage_within_its_band():
    expected = np.outer([2.0, -1.0], RATIOS * [0, 1, 1, 1, 1, 0])
    advantages = np.array([[2.0], [-1.0]])
    np.testing.assert_allclose(coefficients("sao", advantages), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("advantage", "moves"), [(1.0, [1, 1, 1, 0, 0, 0]), (-1.0, [0, 0, 1, 1, 1, 1])]
)
def test_ppo_moves_what_has_not_gone_too_far(advantage, moves):
    expected = advantage * RATIOS * moves
    np.testing.assert_allclose(coefficients("grpo", advantage), expected, rtol=1e-5)


def test_klpo_pulls_back_what_went_too_far():
    expected = 1.0 - 0.5 * np.log(RATIOS)
    found = coefficients("klpo", 1.0, objective__beta=0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def distinct_rows():
    """One name for each way to make coefficients of advantages."""
    names = {}
    for name, row in table.TABLE.items():
        functions = [
            part and part.chosen for part in (row.keep_rule, row.correction, row.objective)
        ]
        names.setdefault((*functions, *row.terms), name)
    return list(names.values())


@pytest.mark.parametrize("name", distinct_rows())
def test_every_kind_of_row_has_a_curve(name):
    found = coefficients(name, np.array([[1.0], [-1.0]]))
    assert found.shape == (2, len(RATIOS))
    assert np.isfinite(found).all()
    compares_pairs = {"rebel"}
    assert found.any() or name in compares_pairs
