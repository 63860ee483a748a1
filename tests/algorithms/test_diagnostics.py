"""Metrics as (sum, weight) pairs: worked numbers, splits, garbage, listed names."""

import jax
import numpy as np
import pytest

from jaxrl_single.algorithms import diagnostics
from jaxrl_single.metrics import names

RATIO = np.float32([0.8, 1.5, 10.0, 0.1])
KEEP = np.float32([1.0, 1.0, 0.0, 0.2])
ADVANTAGES = np.float32([1.0, -0.5, 2.0, -1.0])
ENTROPIES = np.float32([0.2, 0.4, 2.0, 3.0])
POLICY_ENTROPIES = np.float32([0.1, 0.3, 0.5, 0.7])
MASK = np.ones(4, bool)


quantiles = jax.jit(diagnostics.log_ratio_quantiles)


@jax.jit
def all_metrics(keep, log_ratio, advantages, entropies, policy_entropies, mask):
    keeps = diagnostics.keep_metrics(keep, log_ratio, advantages, entropies, mask)
    return keeps | diagnostics.policy_metrics(
        log_ratio, advantages, policy_entropies, entropies, mask
    )


INPUTS = (KEEP, np.log(RATIO), ADVANTAGES, ENTROPIES, POLICY_ENTROPIES)


def test_golden():
    lr = np.log([0.8, 1.5, 10.0, 0.1])
    expected = {
        "keep/fraction": 0.55,
        "keep/fraction_positive": 0.5,  # tokens 0 and 2
        "keep/fraction_negative": 0.6,  # tokens 1 and 3
        "keep/masked_low": 0.2,  # .8 of token 3
        "keep/masked_high": 0.25,  # token 2
        "keep/entropy_kept": 1.2 / 2.2,
        "keep/entropy_masked": 4.4 / 1.8,
        "policy/ratio_mean": 3.1,
        "policy/log_ratio_mean": lr.mean(),
        "policy/log_ratio_abs": np.abs(lr).mean(),
        "policy/k1": -lr.mean(),
        "policy/k3": 2.1 - lr.mean(),
        "policy/chi2": (0.64 + 2.25 + 100 + 0.01) / 4 - 1,
        "policy/entropy": 0.4,
        "policy/sampler_entropy": 1.4,
        "policy/advantage_mean": 0.375,
        "policy/advantage_abs": 1.125,
    }
    got = diagnostics.means(all_metrics(*INPUTS, MASK))
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, err_msg=name)


def test_tokens_without_advantage_are_in_neither_sign():
    metrics = all_metrics(
        KEEP, np.log(RATIO), np.zeros(4, np.float32), ENTROPIES, POLICY_ENTROPIES, MASK
    )
    means = diagnostics.means(metrics)
    assert np.isnan(means["keep/fraction_positive"])
    assert np.isnan(means["keep/fraction_negative"])


def test_means_are_nan_without_weight():
    means = diagnostics.means(all_metrics(*INPUTS, np.zeros(4, bool)))
    for name, value in means.items():
        assert np.isnan(value), name
    all_kept = diagnostics.means(all_metrics(np.ones(4, np.float32), *INPUTS[1:], MASK))
    assert np.isnan(all_kept["keep/entropy_masked"])


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 3e38])
def test_garbage_under_the_mask_is_bit_identical(garbage):
    mask = np.array([True, False, True, True])
    clean = all_metrics(*INPUTS, mask)
    dirty = all_metrics(*(np.where(mask, x, np.float32(garbage)) for x in INPUTS), mask)
    for name in clean:
        np.testing.assert_array_equal(dirty[name], clean[name], err_msg=name)


def test_pairs_of_parts_add_up_to_the_whole():
    whole = diagnostics.means(all_metrics(*INPUTS, MASK))
    parts = [all_metrics(*INPUTS, np.array(mask, bool)) for mask in ([1, 0, 0, 0], [0, 1, 1, 1])]
    added = diagnostics.means(jax.tree.map(lambda a, b: a + b, *parts))
    for name in whole:
        np.testing.assert_allclose(added[name], whole[name], rtol=1e-6, err_msg=name)


def test_log_ratio_quantiles_golden():
    """Five log-ratios 0, .1, .2, .3, .4 and one of garbage."""
    policy = np.float32([-1.0, -0.9, -0.8, np.nan, -0.7, -0.6])
    mask = np.array([True, True, True, False, True, True])
    got = quantiles(policy, np.full(6, -1.0, np.float32), mask)
    expected = [0.0, 0.004, 0.02, 0.1, 0.2, 0.3, 0.38, 0.396, 0.4]
    np.testing.assert_allclose(
        [got[name] for name in diagnostics.LOG_RATIO_QUANTILES], expected, atol=1e-6
    )


def test_every_name_is_listed():
    listed = [*all_metrics(*INPUTS, MASK), *diagnostics.LOG_RATIO_QUANTILES]
    for name in listed:
        names.check(name)
