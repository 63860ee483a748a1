"""Skip-observation GAE: worked numbers, an independent version, garbage, packing."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxrl_single import types
from jaxrl_single.advantages import gae, skip_obs_gae

GARBAGE = (np.nan, np.inf, -np.inf, 3e38, 100.0)
FLOATS = st.floats(-3, 3, width=32, allow_subnormal=False)


@jax.jit
def function(rewards, values, mask, index, bootstraps, discount, lambda_):
    return skip_obs_gae.skip_obs_gae(
        rewards, values, mask, index, bootstraps, discount=discount, lambda_=lambda_
    )


def one_trajectory(rewards, values, mask, *, discount=1.0, lambda_=0.5, bootstrap=0.0):
    """Advantages of a single trajectory given as lists."""
    rewards, values = np.float32(rewards), np.float32(values)
    mask, index = np.array(mask, bool), np.zeros(len(mask), np.int32)
    bootstraps = np.full(1, bootstrap, np.float32)
    return function(rewards, values, mask, index, bootstraps, discount, lambda_)


def independent(rewards, values, mask, index, bootstraps, discount, lambda_):
    """Float64, trajectory by trajectory: drop what is no action, recur, put back."""
    advantages, returns = np.zeros(len(mask)), np.zeros(len(mask))
    lambda_ = np.broadcast_to(lambda_, mask.shape)
    for trajectory, bootstrap in enumerate(bootstraps):
        following_value, following_advantage = float(bootstrap), 0.0
        for t in np.flatnonzero(mask & (index == trajectory))[::-1]:
            delta = float(rewards[t]) + discount * following_value - float(values[t])
            advantages[t] = delta + discount * float(lambda_[t]) * following_advantage
            returns[t] = advantages[t] + float(values[t])
            following_value, following_advantage = float(values[t]), advantages[t]
    return advantages, returns


def random_stream(seed, num_trajectories=6, length=40, padding=8):
    """A stream with random lengths and masks; trajectory 2 has no action token."""
    rng = np.random.default_rng(seed)
    index = np.sort(rng.integers(0, num_trajectories, length)).astype(np.int32)
    index = np.append(index, np.full(padding, -1, np.int32))
    mask = (rng.random(length + padding) < 0.6) & (index != 2) & (index >= 0)
    rewards, values = rng.normal(size=(2, length + padding)).astype(np.float32)
    bootstraps = np.where(rng.random(num_trajectories) < 0.5, 0.0, rng.normal()).astype(np.float32)
    lambda_ = rng.random(length + padding).astype(np.float32)
    return rewards, values, mask, index, bootstraps, np.float32(0.9), lambda_


@pytest.mark.parametrize("observed", [(-3.0, 7.0), (100.0, -100.0), (np.nan, np.inf)])
@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [
        (0.5, [0.25, 0.3, 0.0, 0.0, 0.2]),
        (7 / 9, [0.37654321, 0.35555556, 0.0, 0.0, 0.2]),
        (1.0, [0.5, 0.4, 0.0, 0.0, 0.2]),
    ],
)
def test_golden_action_observation_action(observed, lambda_, expected):
    """a a o o a: the second token bootstraps on the value of the last, .8, not on -3."""
    values = [0.5, 0.6, *observed, 0.8]
    advantages, returns = one_trajectory([0, 0, 0, 0, 1], values, [1, 1, 0, 0, 1], lambda_=lambda_)
    np.testing.assert_allclose(advantages, expected, atol=1e-6)
    target = np.array(expected) + [0.5, 0.6, 0, 0, 0.8]
    np.testing.assert_allclose(returns, target, atol=1e-6)


def test_lambda_one_target_is_the_reward_on_every_action():
    _, returns = one_trajectory(
        [0, 0, 0, 0, 1], [0.5, 0.6, -3, 7, 0.8], [1, 1, 0, 0, 1], lambda_=1.0
    )
    np.testing.assert_allclose(returns, [1, 1, 0, 0, 1], atol=1e-6)


def test_reward_of_a_trailing_observation_goes_to_the_action_before_it():
    mask = np.array([True, False])
    rewards = types.fold_rewards(np.array([0.0, 1.0], np.float32), mask)
    advantages, _ = one_trajectory(rewards, [0.3, 9.0], mask)
    np.testing.assert_allclose(advantages, [0.7, 0.0], atol=1e-6)


def test_cut_trajectory_bootstraps_and_terminated_one_does_not():
    cut, _ = one_trajectory([0, 0], [0.5, 0.6], [1, 1], bootstrap=0.7)
    np.testing.assert_allclose(cut, [0.15, 0.1], atol=1e-6)
    ended, returns = one_trajectory([0.0], [0.6], [1])
    np.testing.assert_allclose((ended[0], returns[0]), (-0.6, 0.0), atol=1e-6)
    bootstrapped, returns = one_trajectory([0.0], [0.6], [1], bootstrap=0.6)
    np.testing.assert_allclose((bootstrapped[0], returns[0]), (0.0, 0.6), atol=1e-6)


def test_no_action_tokens_gives_zeros():
    for output in one_trajectory([1, np.nan], [2, 3], [0, 0], bootstrap=5.0):
        np.testing.assert_array_equal(output, [0.0, 0.0])


@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_value_does_not_bootstrap_real_tokens(garbage):
    """Known fault elsewhere: [5.70, 6.0] here, from the value 100 under the mask."""
    advantages, _ = one_trajectory([0, 1, 0], [0, 0, garbage], [1, 1, 0], lambda_=0.95)
    np.testing.assert_allclose(advantages, [0.95, 1.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("num_observations", [1, 3, 6])
def test_observations_neither_cut_nor_dilute_credit(num_observations):
    """One decay per action token: 0.5, never 0 and never 0.5^(1 + observations)."""
    mask = [1] + [0] * num_observations + [1]
    rewards = [0.0] * (num_observations + 1) + [1.0]
    advantages, _ = one_trajectory(rewards, np.zeros(len(mask)), mask, discount=0.5, lambda_=1.0)
    np.testing.assert_allclose(advantages[0], 0.5)
    np.testing.assert_allclose(advantages[-1], 1.0)


def test_folded_terminal_reward_of_an_episode_that_ends_with_observations():
    mask = np.array([True, True, False, False])
    rewards = types.fold_rewards(np.array([0, 0, 0, 1], np.float32), mask)
    advantages, _ = one_trajectory(rewards, np.zeros(4), mask, discount=0.0)
    np.testing.assert_allclose(advantages, [0.0, 1.0, 0.0, 0.0])


@pytest.mark.parametrize("seed", range(8))
def test_equals_independent_version(seed):
    stream = random_stream(seed)
    for ours, theirs in zip(function(*stream), independent(*stream), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_anything_off_the_actions_leaves_results_bit_identical(garbage):
    stream = random_stream(11)
    rewards, values, mask, index, bootstraps, discount, lambda_ = (np.copy(x) for x in stream)
    for array in (rewards, values, lambda_):
        array[~mask] = garbage
    bootstraps[2] = garbage  # of the trajectory without actions
    dirty = function(rewards, values, mask, index, bootstraps, discount, lambda_)
    for before, after in zip(function(*stream), dirty, strict=True):
        np.testing.assert_array_equal(after, before)
        np.testing.assert_array_equal(np.asarray(after)[~mask], 0.0)


def test_mask_on_padding_does_not_count():
    stream = random_stream(12)
    rewards, values, mask, index, *rest = stream
    dirty = function(rewards, values, mask | (index < 0), index, *rest)
    for before, after in zip(function(*stream), dirty, strict=True):
        np.testing.assert_array_equal(after, before)


def test_nan_on_an_action_surfaces_within_its_trajectory_only():
    rewards, values, mask, index, *rest = random_stream(13)
    at = np.flatnonzero(mask & (index == 3))[0]
    values = values.copy()
    values[at] = np.nan
    advantages, _ = function(rewards, values, mask, index, *rest)
    assert np.isnan(advantages[at])
    assert np.isfinite(np.asarray(advantages)[index != 3]).all()


@pytest.mark.parametrize("seed", range(3))
def test_packed_equals_each_trajectory_alone_bitwise(seed):
    """Neighbours in a packed stream change no bit."""
    rewards, values, mask, index, bootstraps, discount, lambda_ = random_stream(20 + seed)
    packed = function(rewards, values, mask, index, bootstraps, discount, lambda_)
    for trajectory in range(len(bootstraps)):
        own = index == trajectory
        alone_index = np.where(own, trajectory, -1).astype(np.int32)
        alone = function(rewards, values, mask & own, alone_index, bootstraps, discount, lambda_)
        for together, single in zip(packed, alone, strict=True):
            np.testing.assert_array_equal(np.asarray(together)[own], np.asarray(single)[own])


def test_reordered_trajectories_give_reordered_results():
    rewards, values, mask, index, bootstraps, discount, lambda_ = random_stream(30)
    order = np.argsort(np.where(index < 0, 99, len(bootstraps) - 1 - index), kind="stable")
    new_index = np.where(index < 0, -1, len(bootstraps) - 1 - index)[order].astype(np.int32)
    moved = [x[order] for x in (rewards, values, mask)]
    original = function(rewards, values, mask, index, bootstraps, discount, lambda_)
    swapped = function(*moved, new_index, bootstraps[::-1], discount, lambda_[order])
    for before, after in zip(original, swapped, strict=True):
        np.testing.assert_array_equal(np.asarray(before)[order], after)


@hypothesis.given(
    hnp.arrays(np.float32, 9, elements=FLOATS),
    hnp.arrays(np.float32, 9, elements=FLOATS),
    hnp.arrays(np.bool_, 9),
    st.floats(0, 1, width=32, allow_subnormal=False),
    st.floats(0, 1, width=32, allow_subnormal=False),
    FLOATS,
)
@hypothesis.settings(deadline=None, max_examples=60)
def test_is_gae_of_the_compacted_actions(rewards, values, mask, discount, lambda_, bootstrap):
    ours = one_trajectory(
        rewards, values, mask, discount=discount, lambda_=lambda_, bootstrap=bootstrap
    )
    steps = np.flatnonzero(mask)
    expected = np.zeros((2, 9))
    expected[:, steps] = independent(
        rewards[steps], values[steps], np.ones(len(steps), bool), np.zeros(len(steps), int),
        [bootstrap], discount, lambda_,
    )  # fmt: skip
    np.testing.assert_allclose(np.stack(ours), expected, atol=2e-5)


@hypothesis.given(
    hnp.arrays(np.float32, 9, elements=FLOATS),
    hnp.arrays(np.float32, 9, elements=FLOATS),
    hnp.arrays(np.bool_, 9),
)
@hypothesis.settings(deadline=None, max_examples=60)
def test_lambda_and_discount_one_telescope_to_the_rewards_to_come(rewards, values, mask):
    _, returns = one_trajectory(rewards, values, mask, lambda_=1.0)
    to_come = np.cumsum(np.where(mask, rewards, 0.0)[::-1].astype(np.float64))[::-1]
    np.testing.assert_allclose(returns, np.where(mask, to_come, 0.0), atol=2e-5)


def test_without_observations_equals_gae():
    rng = np.random.default_rng(40)
    rewards, values = rng.normal(size=(2, 9)).astype(np.float32)
    ours = one_trajectory(rewards, values, np.ones(9), discount=0.9, bootstrap=0.4)
    theirs = gae.gae(rewards, values, 0.4, discount=0.9, lambda_=0.5)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_vmap_over_streams_equals_loop():
    streams = [random_stream(50 + i) for i in range(3)]
    stacked = [np.stack(arrays) for arrays in zip(*streams, strict=True)]
    together = jax.vmap(function)(*stacked)
    for i, stream in enumerate(streams):
        for mapped, alone in zip(together, function(*stream), strict=True):
            np.testing.assert_allclose(mapped[i], alone, atol=1e-6)


def test_no_gradient_flows_and_results_are_float32():
    rewards, values, mask, index, bootstraps, *_ = random_stream(60)

    def total(values, bootstraps):
        arrays = (rewards, values, mask, index, bootstraps)
        outputs = skip_obs_gae.skip_obs_gae(*arrays, discount=0.9, lambda_=0.5)
        return sum(jnp.sum(x) for x in outputs)

    for gradient in jax.grad(total, argnums=(0, 1))(values, bootstraps):
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))
    half = jnp.asarray(values, jnp.bfloat16)
    for output in function(rewards, half, mask, index, bootstraps, 1.0, 0.5):
        assert output.dtype == jnp.float32


def test_shapes_must_agree():
    with pytest.raises(AssertionError):
        skip_obs_gae.skip_obs_gae(
            jnp.zeros(3), jnp.zeros(4), jnp.ones(3, bool), jnp.zeros(3, jnp.int32), jnp.zeros(1),
            discount=1.0, lambda_=1.0,
        )  # fmt: skip
