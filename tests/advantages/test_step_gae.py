"""GAE over turns: worked numbers, an independent version, relations to the token level."""

import jax
import numpy as np
import pytest

from jaxrl_single.advantages import critic_gae, step_gae

FUNCTIONS = {
    name: jax.jit(getattr(step_gae, name)) for name in ("step_average", "step_last", "turn_level")
}
OF_TURN = {"step_average": np.mean, "step_last": lambda x: x[-1], "turn_level": lambda x: x[0]}


@pytest.mark.parametrize(
    ("name", "expected", "values"),
    [
        ("step_average", (0.35, 0.2), (0.55, 0.8)),
        ("step_last", (0.3, 0.2), (0.6, 0.8)),
        ("turn_level", (0.4, 0.2), (0.5, 0.8)),  # .8 - .5 + .5 x .2
    ],
)
def test_golden_two_turns(name, expected, values):
    """a a o o a, R = 1; lambda_alpha 2/3 and three action tokens make lambda 1/2."""
    got = FUNCTIONS[name](
        np.float32([0, 0, 9, np.nan, 1]),
        np.float32([0.5, 0.6, -3, np.inf, 0.8]),
        np.array([1, 1, 0, 0, 1], bool),
        np.zeros(5, np.int32),
        np.int32([0, 0, 1, 1, 1]),
        np.zeros(1, np.float32),
        discount=1.0,
        lambda_alpha=2 / 3,
        critic_lambda=0.0,
    )
    spread = np.array([expected[0], expected[0], 0, 0, expected[1]])
    np.testing.assert_allclose(got[0], spread, atol=1e-6)
    # lambda 0: the value of the next turn, then the reward
    np.testing.assert_allclose(got[1], [values[1], values[1], 0, 0, 1], atol=1e-6)


def random_stream(seed):
    """Five trajectories in 40 tokens; trajectory 1 has no action."""
    rng = np.random.default_rng(seed)
    index = np.append(np.sort(rng.integers(0, 5, 36)), [-1] * 4).astype(np.int32)
    mask = (rng.random(40) < 0.6) & (index != 1) & (index >= 0)
    turn_ids = np.cumsum(rng.random(40) < 0.4).astype(np.int32)
    rewards, values = rng.normal(size=(2, 40)).astype(np.float32)
    return rewards, values, mask, index, turn_ids, rng.normal(size=5).astype(np.float32)


def independent(stream, of_turn, discount, lambda_alpha, critic_lambda):
    rewards, values, mask, index, turn_ids, bootstraps = stream
    advantages, returns = np.zeros(40), np.zeros(40)
    for trajectory, bootstrap in enumerate(bootstraps):
        actions = np.flatnonzero(mask & (index == trajectory))
        policy_lambda = max(0.0, 1 - 1 / (lambda_alpha * max(len(actions), 1)))
        next_value, next_advantage, next_critic = float(bootstrap), 0.0, 0.0
        for turn in np.unique(turn_ids[actions])[::-1]:
            tokens = actions[turn_ids[actions] == turn]
            value = of_turn(values[tokens].astype(np.float64))
            delta = rewards[tokens].astype(np.float64).sum() + discount * next_value - value
            next_advantage = delta + discount * policy_lambda * next_advantage
            next_critic = delta + discount * critic_lambda * next_critic
            next_value = value
            advantages[tokens], returns[tokens] = next_advantage, next_critic + value
    return advantages, returns


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_independent_version(name, seed):
    stream = random_stream(seed)
    got = FUNCTIONS[name](*stream, discount=0.9, lambda_alpha=0.4, critic_lambda=0.7)
    expected = independent(stream, OF_TURN[name], 0.9, 0.4, 0.7)
    np.testing.assert_allclose(np.stack(got), np.stack(expected), atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_turns_of_one_token_are_the_token_level(name):
    rewards, values, mask, index, _, bootstraps = random_stream(9)
    turn_ids = np.arange(40, dtype=np.int32)
    settings = {"discount": 0.9, "lambda_alpha": 0.4, "critic_lambda": 0.7}
    got = FUNCTIONS[name](rewards, values, mask, index, turn_ids, bootstraps, **settings)
    expected = critic_gae.critic_gae(rewards, values, mask, index, bootstraps, **settings)
    np.testing.assert_allclose(np.stack(got), np.stack(expected), atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lambda_one_target_is_the_reward_to_come(name):
    rewards, values, mask, index, turn_ids, bootstraps = random_stream(5)
    got = FUNCTIONS[name](
        rewards, values, mask, index, turn_ids, 0 * bootstraps,
        discount=1.0, lambda_alpha=0.4, critic_lambda=1.0,
    )[1]  # fmt: skip
    for t in np.flatnonzero(mask):
        ahead = mask & (index == index[t]) & (turn_ids >= turn_ids[t])
        np.testing.assert_allclose(got[t], rewards[ahead].sum(), atol=1e-5)
