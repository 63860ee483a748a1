"""3SPO: worked numbers of the scores and rewards, statistics, loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.advantages import three_spo

SETTINGS = {"min_failures": 10, "min_rate": 0.1}
function = jax.jit(
    lambda *arrays: three_spo.three_spo(*arrays, alpha=1.0, min_failures=2, min_rate=0.4, decay=0.1)
)


@pytest.mark.parametrize(
    ("alpha", "successes", "failures", "time", "score", "size"),
    [
        (1, 1, 3, 2, 0.840896452, 7),
        (1, 3, 1, 2, 0.594603635, 5),
        (1, 0, 10, 2, 0.0, 0),
        (1, 1, 10, 2, 0.0, 0),  # 1 / 11 < .1
        (1, 0, 9, 5, 1.0, 8),
        (50, 1, 3, 2, 1.72633865e-4, 1),
        (50, 3, 1, 2, 5.1449124e-12, 1),
        (1, 0, 0, 9, 1.0, 8),  # unseen
    ],
)
def test_golden_scores(alpha, successes, failures, time, score, size):
    visits = jnp.asarray(successes + failures)
    got = three_spo.state_score(
        visits, jnp.asarray(successes), jnp.asarray(time), alpha=alpha, **SETTINGS
    )
    np.testing.assert_allclose(got, score, rtol=1e-5)
    assert int(three_spo.group_size(got, max_group=8)) == size


def test_rate_must_exceed_its_bound():
    """With 10 failures and a rate of exactly the bound the state is given up."""
    rate = 10 / (20 + 1e-6)
    arrays = (jnp.float32(20), jnp.float32(10), jnp.float32(2))
    for min_rate, expected in ((rate + 1e-3, 0.0), (rate - 1e-3, 2**-0.5)):
        got = three_spo.state_score(*arrays, alpha=1.0, min_failures=10, min_rate=min_rate)
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_golden_reward():
    got = three_spo.step_reward(4, 0.8, 0.3, False, True, decay=0.1)
    np.testing.assert_allclose(got, 0.582419988491, rtol=1e-6)
    moved = three_spo.step_reward(4, 0.8, 0.8, True, False, decay=0.1)
    np.testing.assert_allclose(moved, 0.335160023018, rtol=1e-6)


def test_a_state_visited_twice_counts_once():
    """States 1 2 1 with success, and 1 without."""
    state = three_spo.three_spo_init(4)
    _, after = function(
        state, np.float32([0.2, 0.0]), np.ones(2, bool), np.ones(4, bool),
        np.int32([0, 0, 0, 1]), np.int32([0, 1, 2, 0]), np.int32([1, 2, 1, 1]),
    )  # fmt: skip
    np.testing.assert_array_equal(after["visits"], [0, 2, 1, 0])
    np.testing.assert_array_equal(after["successes"], [0, 1, 1, 0])
    assert int(after["trajectories"]) == 2


def scalar_score(visits, successes, time):
    if visits == 0:
        return 1.0
    rate = successes / (visits + 1e-6)
    alive = visits - successes < 2 or rate > 0.4
    return np.exp(-np.log(time) * rate) if alive else 0.0


def independent(batch, visits, successes, seen):
    """Advantages; updates the statistics in place."""
    reward, valid, mask, index, turn_ids, state_key = batch
    paths = {}  # trajectory -> [(state, tokens)] in order
    for i in np.flatnonzero(valid):
        own = np.flatnonzero(mask & (index == i))
        turns = [own[turn_ids[own] == turn] for turn in np.unique(turn_ids[own])]
        paths[i] = [(state_key[tokens[0]], tokens) for tokens in turns]
    scores = [scalar_score(*pair, seen + 1) for pair in zip(visits, successes, strict=True)]
    rewards, by_state = [], {}
    for i, path in paths.items():
        for k, (state, tokens) in enumerate(path):
            last = k + 1 == len(path)
            following = state if last else path[k + 1][0]
            weight = 0.5 * np.exp(-0.1 * visits[state])
            r = weight * (following != state) + 0.5 * (last and reward[i] > 0)
            r += (0.5 - weight) * (scores[state] - scores[following])
            rewards.append((state, tokens, r))
            by_state.setdefault(state, []).append(r)
    advantages = np.zeros(len(mask))
    for state, tokens, r in rewards:
        advantages[tokens] = r - np.mean(by_state[state])
    for i, path in paths.items():
        for state in {state for state, _ in path}:
            visits[state] += 1
            successes[state] += reward[i] > 0
    return advantages


@pytest.mark.parametrize("seed", range(3))
def test_batches_equal_loops(seed):
    rng = np.random.default_rng(seed)
    state, visits, successes, seen = three_spo.three_spo_init(5), np.zeros(5), np.zeros(5), 0
    for _ in range(4):
        index = np.append(np.sort(rng.integers(0, 5, 26)), [-1] * 4).astype(np.int32)
        turn_ids = np.cumsum(rng.random(30) < 0.5).astype(np.int32)
        state_key = rng.integers(0, 5, turn_ids.max() + 1)[turn_ids].astype(np.int32)
        mask, valid = (rng.random(30) < 0.7) & (index >= 0), rng.random(5) < 0.9
        reward = (rng.random(5) < 0.4).astype(np.float32)
        batch = (reward, valid, mask, index, turn_ids, state_key)
        expected = independent(batch, visits, successes, seen)
        seen += valid.sum()
        advantages, state = function(state, *batch)
        np.testing.assert_allclose(advantages, expected, atol=1e-5)
        np.testing.assert_array_equal(state["visits"], visits)
        np.testing.assert_array_equal(state["successes"], successes)
