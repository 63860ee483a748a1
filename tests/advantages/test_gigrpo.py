"""Groups in groups: a case by hand, loops, relations."""

import jax
import numpy as np
import pytest

from jaxrl_single.advantages import baselines, gigrpo

centred = jax.jit(lambda *arrays: gigrpo.gigrpo_mean(*arrays, discount=0.5, step_weight=2.0))
weighted = jax.jit(
    lambda weight, *arrays: gigrpo.gigrpo(*arrays, discount=0.5, step_weight=weight, eps=0.1)
)


def test_by_hand():
    """Two trajectories of one task: states 7, 8 with R = 1 at the end, and state 7 with R = 0.

    To come: .5, 1 and 0. State 7: .5 and 0 around .25; state 8 was met once. Episodes: +-.5.
    """
    got = centred(
        np.float32([0, 0, np.nan, 1, 0]),
        np.array([1, 1, 0, 1, 1], bool),
        np.int32([0, 0, 0, 0, 1]),
        np.int32([0, 0, 1, 1, 0]),
        np.int32([7, 7, 8, 8, 7]),
        np.float32([1, 0]),
        np.int32([4, 4]),
        np.ones(2, bool),
    )
    np.testing.assert_allclose(got, [1.0, 1.0, 0.0, 0.5, -1.0], atol=1e-6)


def random_batch(seed):
    rng = np.random.default_rng(seed)
    index = np.append(np.sort(rng.integers(0, 6, 36)), [-1] * 4).astype(np.int32)
    turn_ids = np.cumsum(rng.random(40) < 0.5).astype(np.int32)
    mask = (rng.random(40) < 0.7) & (index >= 0)
    state_key = rng.integers(0, 3, turn_ids.max() + 1)[turn_ids].astype(np.int32)
    rewards = rng.normal(size=40).astype(np.float32)
    reward, group = rng.normal(size=6).astype(np.float32), rng.integers(0, 2, 6).astype(np.int32)
    return rewards, mask, index, turn_ids, state_key, reward, group, rng.random(6) < 0.9


def independent(batch, scale):
    rewards, mask, index, turn_ids, state_key, reward, group, valid = batch
    steps = {}  # (trajectory, turn) -> tokens
    for t in np.flatnonzero(mask):
        if valid[index[t]]:
            steps.setdefault((index[t], turn_ids[t]), []).append(t)
    to_come, members = {}, {}
    for i, turn in sorted(steps, reverse=True):
        later = [s for s in steps if s[0] == i and s[1] > turn]
        ahead = to_come[min(later)] if later else 0.0
        to_come[i, turn] = rewards[steps[i, turn]].astype(np.float64).sum() + 0.5 * ahead
    keys = {s: (group[s[0]], state_key[tokens[0]]) for s, tokens in steps.items()}
    for step, key in keys.items():
        members.setdefault(key, []).append(to_come[step])
    advantages = np.zeros(40)
    for step, tokens in steps.items():
        own = reward[valid & (group == group[step[0]])].astype(np.float64)
        same = np.array(members[keys[step]])
        episode = scale(reward[step[0]] - own.mean(), own)
        advantages[tokens] = episode + 2 * scale(to_come[step] - same.mean(), same)
    return advantages


@pytest.mark.parametrize("seed", range(4))
def test_equals_loops(seed):
    batch = random_batch(seed)
    expected = independent(batch, lambda deviation, group: deviation)
    np.testing.assert_allclose(centred(*batch), expected, atol=1e-5)
    expected = independent(batch, lambda deviation, group: deviation / (group.std() + 0.1))
    np.testing.assert_allclose(weighted(2.0, *batch), expected, atol=1e-4)


def test_without_step_weight_it_is_the_group_normalised_reward():
    batch = random_batch(7)
    mask, index, reward, group, valid = (batch[i] for i in (1, 2, 5, 6, 7))
    outcome = np.asarray(baselines.group_normalised(reward, group, valid, eps=0.1))
    expected = np.where(mask & valid[index], outcome[index], 0.0)
    np.testing.assert_allclose(weighted(0.0, *batch), expected, atol=1e-6)
