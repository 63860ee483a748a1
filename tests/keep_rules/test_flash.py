"""FlashREINFORCE's gates: the worked batch, saturation, ties of entropy."""

import jax
import numpy as np
import pytest

from jaxrl_single.keep_rules import flash
from tests.keep_rules import fixture

flash_trust_region = jax.jit(flash.flash_trust_region, static_argnums=4)
entropy_filter = jax.jit(flash.entropy_filter, static_argnums=4)
flash_filtered = jax.jit(flash.flash_filtered, static_argnums=6)

ROLLOUT = np.float32(np.log([0.5, 0.8, 0.2, 0.9, 0.6, 0.7]))
POLICY = np.float32(np.log([0.52, 0.79, 0.5, 0.9, 0.55, 0.72]))
OWNERS = (np.ones(6, bool), np.array([0, 0, 1, 1, 1, 2]), 3)
MEANS = (5.52817e-4, 0.065946123, 9.78248e-4)


def test_golden_batch():
    keep = flash_trust_region(POLICY, ROLLOUT, *OWNERS, delta=3e-3)
    assert fixture.bits(keep) == "110001"


@pytest.mark.parametrize("trajectory", range(3))
def test_a_trajectory_changes_sides_at_its_mean(trajectory):
    token = int(np.flatnonzero(OWNERS[1] == trajectory)[0])
    for factor, expected in ((0.9999, 0.0), (1.0001, 1.0)):
        delta = MEANS[trajectory] * factor
        keep = flash_trust_region(POLICY, ROLLOUT, *OWNERS, delta=delta)
        assert keep[token] == expected


def test_saturated_tokens_agree_and_infinity_switches_off():
    policy, rollout = np.float32([0.0, 0.0, -1e4]), np.float32([0.0, -1e4, 0.0])
    owners = (np.ones(3, bool), np.arange(3), 3)
    rule = flash_trust_region
    assert fixture.bits(rule(policy, rollout, *owners, delta=0.0)) == "100"
    assert fixture.bits(rule(policy, rollout, *owners, delta=np.inf)) == "111"


def filtered(entropies, reward, fraction):
    entropies = np.asarray(entropies, np.float32)
    owners = (np.ones(entropies.shape, bool), np.zeros(entropies.shape, np.int32), 1)
    reward = np.float32([reward])
    return fixture.bits(entropy_filter(entropies, reward, *owners, fraction=fraction))


@pytest.mark.parametrize(
    ("entropies", "fraction", "expected"),
    [
        ((0.3, 1.5, 0.3), 0.5, "110"),  # ceil(1.5) = 2; of the two equal ones the first
        ((0.3, 1.5, 0.3), 1 / 3, "010"),
        ((0.3, 1.5, 0.3), 0.0, "000"),
        ((0.3, 1.5, 0.3), 1.0, "111"),
        ((0.0, 0.0, 0.0, 0.0), 0.5, "1100"),
    ],
)
def test_entropy_filter(entropies, fraction, expected):
    assert filtered(entropies, 0.0, fraction) == expected
    assert filtered(entropies, -1.0, fraction) == expected
    assert filtered(entropies, 1.0, fraction) == "1" * len(entropies)


@pytest.mark.parametrize("seed", range(4))
def test_entropy_filter_equals_one_by_hand(seed):
    rng = np.random.default_rng(seed)
    index = np.repeat([0, 1, 2, 3, -1], [7, 1, 12, 5, 3])
    entropies = np.round(rng.random(28), 1).astype(np.float32)  # with ties
    mask, reward = rng.random(28) < 0.7, np.float32([0.0, 0.0, -1.0, 1.0])
    expected = np.zeros(28)
    for trajectory in range(4):
        own = np.flatnonzero(mask & (index == trajectory))
        number = len(own) if reward[trajectory] > 0 else int(np.ceil(0.4 * len(own)))
        expected[sorted(own, key=lambda t: (-entropies[t], t))[:number]] = 1.0
    got = entropy_filter(entropies, reward, mask, index, 4, fraction=0.4)
    np.testing.assert_array_equal(got, expected)


def test_both_gates_multiply():
    entropies, reward = np.float32([1, 2, 1, 2, 3, 4]), np.float32([0.0, 0.0, 1.0])
    keep = flash_filtered(POLICY, ROLLOUT, entropies, reward, *OWNERS, delta=3e-3, fraction=0.5)
    assert fixture.bits(keep) == "010001"
