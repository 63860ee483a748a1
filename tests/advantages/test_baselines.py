"""Advantages from rewards alone: worked numbers, degenerate groups, padding, the bias of self."""

import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl_single.advantages import baselines

batch_mean = jax.jit(baselines.batch_mean)
group_normalised = jax.jit(lambda r, g, v: baselines.group_normalised(r, g, v, eps=1e-6))
REWARDS = hnp.arrays(np.float32, 8, elements=st.floats(-2, 2, width=32, allow_subnormal=False))


def padded(rewards, size=8):
    """Rewards and valid, filled up with garbage."""
    fill = size - len(rewards)
    valid = np.arange(size) < len(rewards)
    return np.append(np.float32(rewards), np.full(fill, np.nan, np.float32)), valid


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        ([1, 0.5, -1], [0.833333333, 0.333333333, -1.166666667]),
        ([0.1] * 3, [0.0] * 3),
        ([5.0], [0.0]),
        ([], []),
    ],
)
def test_batch_mean_golden(rewards, expected):
    got = batch_mean(*padded(rewards))
    np.testing.assert_allclose(got[: len(rewards)], expected, atol=1e-6)
    np.testing.assert_array_equal(got[len(rewards) :], 0.0)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 1], [0.999998, -0.999998, -0.999998, 0.999998]),
        ([1, 0.5, -1], [0.980579522, 0.392231809, -1.372811331]),
    ],
)
def test_group_normalised_golden(rewards, expected):
    rewards, valid = padded(rewards)
    got = group_normalised(rewards, np.full(8, 3), valid)
    np.testing.assert_allclose(got[: len(expected)], expected, rtol=1e-5)
    np.testing.assert_array_equal(got[len(expected) :], 0.0)


@pytest.mark.parametrize("reward", [0.1, -0.3, 1.0, 0.7])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_rewards_give_exactly_zero(reward, size):
    """Rounding of the mean over eps 1e-6 would be noise of a few percent."""
    rewards, valid = padded([reward] * size)
    np.testing.assert_array_equal(group_normalised(rewards, np.zeros(8, int), valid), 0.0)


@hypothesis.given(REWARDS, hnp.arrays(np.int32, 8, elements=st.integers(0, 2)))
@hypothesis.settings(deadline=None, max_examples=60)
def test_groups_do_not_mix(rewards, group):
    got = np.asarray(group_normalised(rewards, group, np.ones(8, bool)))
    for number in set(group):
        own = rewards[group == number].astype(np.float64)
        spread = own.std()
        if own.min() == own.max():
            np.testing.assert_array_equal(got[group == number], 0.0)
        elif spread > 1e-2:  # below, float32 rounding of the mean is not small against the spread
            expected = (own - own.mean()) / (spread + 1e-6)
            np.testing.assert_allclose(got[group == number], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("function", ["batch_mean", "group_normalised"])
def test_no_gradient_flows(function):
    def total(reward):
        valid, group = jnp.ones(4, bool), jnp.zeros(4, jnp.int32)
        if function == "batch_mean":
            return jnp.sum(baselines.batch_mean(reward, valid) * jnp.arange(4.0))
        outputs = baselines.group_normalised(reward, group, valid, eps=1e-6)
        return jnp.sum(outputs * jnp.arange(4.0))

    np.testing.assert_array_equal(jax.grad(total)(jnp.array([1.0, 0.0, 2.0, 1.0])), np.zeros(4))


def test_including_oneself_halves_the_expected_gradient_of_two():
    """Enumerated: E over pairs of the batch-centred score gradient is exactly dJ / 2."""
    probabilities, rewards = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.2, -0.5])
    exact = probabilities * (rewards - probabilities @ rewards)
    expected = np.zeros(3)
    for pair in itertools.product(range(3), repeat=2):
        advantages = np.asarray(batch_mean(*padded(rewards[list(pair)])))[:2]
        scores = np.eye(3)[list(pair)] - probabilities
        weight = probabilities[pair[0]] * probabilities[pair[1]]
        expected += weight * np.mean(advantages[:, None] * scores, axis=0)
    np.testing.assert_allclose(expected, exact / 2, atol=1e-7)


batch_leave_one_out = jax.jit(baselines.batch_leave_one_out)
group_mean = jax.jit(baselines.group_mean)
leave_one_out = jax.jit(baselines.leave_one_out)
RLOO = [
    ([1, 0, 0, 1], [2 / 3, -2 / 3, -2 / 3, 2 / 3]),
    ([1, 0.5, -1], [1.25, 0.5, -1.75]),
]


@pytest.mark.parametrize(("rewards", "expected"), RLOO)
def test_leave_one_out_golden(rewards, expected):
    """1 against (0 + 0 + 1) / 3; 1 against (.5 - 1) / 2."""
    rewards, valid = padded(rewards)
    for got in (
        batch_leave_one_out(rewards, valid),
        leave_one_out(rewards, np.full(8, 3), valid),
    ):
        np.testing.assert_allclose(got[: len(expected)], expected, atol=1e-6)
        np.testing.assert_array_equal(got[len(expected) :], 0.0)


def test_group_mean_golden():
    rewards, valid = padded([1, 0.5, -1])
    expected = [0.833333333, 0.333333333, -1.166666667]
    np.testing.assert_allclose(group_mean(rewards, np.full(8, 3), valid)[:3], expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_comparisons_within_groups_equal_loops(seed):
    rng = np.random.default_rng(seed)
    rewards, group, valid = rng.normal(size=8), rng.integers(0, 3, 8), rng.random(8) < 0.8
    means, others = np.zeros(8), np.zeros(8)
    for i in np.flatnonzero(valid):
        own = [rewards[j] for j in range(8) if valid[j] and group[j] == group[i]]
        rest = [rewards[j] for j in range(8) if valid[j] and group[j] == group[i] and j != i]
        means[i] = rewards[i] - np.mean(own)
        others[i] = rewards[i] - np.mean(rest) if rest else 0.0
    rewards = np.float32(rewards)
    np.testing.assert_allclose(group_mean(rewards, group, valid), means, atol=1e-6)
    np.testing.assert_allclose(leave_one_out(rewards, group, valid), others, atol=1e-6)


@pytest.mark.parametrize("size", [2, 5, 8])
def test_leave_one_out_is_n_over_n_minus_one_times_the_batch_mean(size):
    rewards, valid = padded(np.random.default_rng(size).normal(size=size))
    expected = size / (size - 1) * np.asarray(batch_mean(rewards, valid))
    np.testing.assert_allclose(leave_one_out(rewards, np.zeros(8, int), valid), expected, atol=1e-6)


@pytest.mark.parametrize("reward", [0.1, -0.3, 0.7])
def test_nothing_to_compare_gives_exactly_zero(reward):
    one = padded([reward])
    np.testing.assert_array_equal(batch_leave_one_out(*one), 0.0)
    alone = np.arange(8)
    np.testing.assert_array_equal(leave_one_out(np.full(8, reward), alone, np.ones(8, bool)), 0.0)
    for function in (group_mean, leave_one_out):
        rewards, valid = padded([reward] * 7)
        np.testing.assert_array_equal(function(rewards, np.zeros(8, int), valid), 0.0)


def test_without_oneself_the_expected_gradient_is_exact():
    """Enumerated as for the batch mean, where it is halved."""
    probabilities, rewards = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.2, -0.5])
    expected = np.zeros(3)
    for pair in itertools.product(range(3), repeat=2):
        advantages = np.asarray(batch_leave_one_out(*padded(rewards[list(pair)])))[:2]
        scores = np.eye(3)[list(pair)] - probabilities
        weight = probabilities[pair[0]] * probabilities[pair[1]]
        expected += weight * np.mean(advantages[:, None] * scores, axis=0)
    exact = probabilities * (rewards - probabilities @ rewards)
    np.testing.assert_allclose(expected, exact, atol=1e-7)


def test_reward_only_and_prompt_value():
    rewards, valid = padded([1.0, 0.25])
    np.testing.assert_array_equal(baselines.reward_only(rewards, valid)[:3], [1.0, 0.25, 0.0])
    values = np.full(8, 0.75, np.float32)
    got = baselines.reward_minus_prompt_value(rewards, values, valid)
    np.testing.assert_array_equal(got[:3], [0.25, -0.5, 0.0])
