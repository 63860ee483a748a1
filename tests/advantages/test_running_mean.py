"""Running means: worked numbers, order, windows, padding."""

import collections

import jax
import numpy as np
import pytest

from jaxrl_single.advantages import running_mean

per_task = jax.jit(lambda s, r, t, v: running_mean.running_mean(s, r, t, v, initial=0.5))
overall = jax.jit(lambda s, r, v: running_mean.global_running_mean(s, r, v, initial=0.5))
ALL = np.ones(4, bool)


def test_golden_reads_before_it_inserts():
    """Windows of 2: empty, [1], [1, 0], [0, 1]."""
    state = running_mean.running_mean_init(3, window=2)
    rewards = np.float32([1, 0, 1, 1])
    advantages, after = per_task(state, rewards, np.full(4, 2), ALL)
    np.testing.assert_array_equal(advantages, [0.5, -1.0, 0.5, 0.5])
    np.testing.assert_array_equal(after["seen"], [0, 0, 4])
    np.testing.assert_array_equal(after["rewards"], [[0, 0], [0, 0], [1, 1]])
    whole = running_mean.global_running_mean_init(3, window=2)
    np.testing.assert_array_equal(overall(whole, rewards, ALL)[0], advantages)


def independent(rewards, tasks, window):
    windows, advantages = collections.defaultdict(list), []
    for reward, task in zip(rewards, tasks, strict=True):
        last = windows[task][-window:]
        advantages.append(reward - (np.mean(last) if last else 0.5))
        windows[task].append(reward)
    return advantages


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("window", [1, 3])
def test_batches_equal_one_after_the_other(seed, window):
    """Five batches of four, tasks mixed, one padding entry in each."""
    rng = np.random.default_rng(seed)
    rewards, tasks = np.float32(rng.normal(size=15)), rng.integers(0, 3, 15)
    task_state = running_mean.running_mean_init(3, window=window)
    state = running_mean.global_running_mean_init(3, window=window)
    by_task, over_all = [], []
    for batch in range(5):
        here, place = slice(3 * batch, 3 * batch + 3), rng.integers(0, 4)
        valid = np.arange(4) != place
        reward = np.insert(rewards[here], place, np.nan)
        task = np.insert(tasks[here], place, 10**6)
        advantages, task_state = per_task(task_state, reward, task, valid)
        by_task += list(np.asarray(advantages)[valid])
        advantages, state = overall(state, reward, valid)
        over_all += list(np.asarray(advantages)[valid])
    np.testing.assert_allclose(by_task, independent(rewards, tasks, window), atol=1e-6)
    np.testing.assert_allclose(over_all, independent(rewards, 0 * tasks, window), atol=1e-6)


def test_own_reward_is_not_in_its_baseline():
    """R - A must not change with R."""
    state = running_mean.running_mean_init(1, window=8)
    for reward in (0.0, 5.0):
        rewards = np.float32([1, 0, 0, reward])
        advantages, _ = per_task(state, rewards, np.zeros(4, int), ALL)
        np.testing.assert_allclose(reward - advantages[3], 1 / 3, rtol=1e-6)


def test_constant_reward_gives_zero_once_the_window_holds_it():
    state = running_mean.running_mean_init(1, window=4)
    _, state = per_task(state, np.ones(4, np.float32), np.zeros(4, int), ALL)
    advantages, _ = per_task(state, np.ones(4, np.float32), np.zeros(4, int), ALL)
    np.testing.assert_array_equal(advantages, 0.0)
