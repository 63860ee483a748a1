"""Value pretraining: targets, learning, and explained variance over held-out rollouts."""

import jax
import numpy as np
import optax
import pytest
import trainer_cases as cases

from jaxrl_single.metrics import names
from jaxrl_single.trainer import state as state_lib
from jaxrl_single.trainer import value_step


def _table(critic_params):
    return np.asarray(critic_params["value_head"]["kernel"], np.float64)


def test_one_step_agrees_with_numpy():
    critic = cases.lookup_critic()
    params = critic.init(jax.random.key(5))
    optimizer = cases.optimizer(params, transform=optax.sgd(0.3))
    step = value_step.make_value_step(critic, optimizer, discount=0.9, critic_lambda=1.0)
    trajectories = cases.trajectories(6)
    state, metrics = step(
        state_lib.init_model_state(params, optimizer), cases.pack(trajectories, rows=4, micro=2)
    )
    table, gradient, errors = _table(params), np.zeros(cases.VOCABULARY), []
    for t in trajectories:
        at = np.flatnonzero(t.action_mask)
        returns = 0.9 ** np.arange(len(at))[::-1] * t.reward  # the reward is on the last action
        error = table[t.tokens[at - 1]] - returns
        np.add.at(gradient, t.tokens[at - 1], 2 * error)
        errors.extend(error)
    expected = table - 0.3 * gradient / len(errors)
    np.testing.assert_allclose(_table(state.params), expected, atol=2e-6)
    np.testing.assert_allclose(
        metrics["value_pretraining/loss"], np.mean(np.square(errors)), rtol=1e-5
    )
    for name in metrics:
        names.check(name)


@pytest.fixture(scope="module")
def predict():
    return value_step.make_predict(cases.lookup_critic(), discount=1.0, critic_lambda=0.5)


def test_a_cut_trajectory_bootstraps_from_the_value_after_its_last_token(predict):
    params = {"value_head": {"kernel": np.arange(cases.VOCABULARY, dtype=np.float32)}}
    tokens = np.array([3, 1, 4, 7], np.int32)
    cut = cases.trajectory(
        [0, 1, 1, 0], tokens=tokens, reward=0.0, terminated=False, truncated=True
    )
    done = cases.trajectory([0, 1, 1, 0], tokens=tokens, reward=0.0, ticket=1)
    batch = cases.pack([cut, done], rows=1, row_length=8, on_limit="bootstrap")
    values, returns = predict(params, batch)
    assert values[0, 0].tolist() == [0, 3, 1, 4] * 2
    # lambda 0.5: G_2 = what comes after, G_1 = (V_2 + G_2) / 2
    assert returns[0, 0].tolist() == [0, 4, 7, 0, 0, 0.5, 0, 0]


def test_explained_variance_is_pooled_over_batches(predict):
    params = {"value_head": {"kernel": np.linspace(0, 1, cases.VOCABULARY, dtype=np.float32)}}
    batches = [cases.pack(cases.trajectories(n, seed=n), rows=4, slots=8) for n in (3, 8)]
    values, returns = [], []
    for batch in batches:
        value, target = predict(params, batch)
        values.append(np.asarray(value)[batch.loss_mask])
        returns.append(np.asarray(target)[batch.loss_mask])
    g, v = (np.concatenate(parts).astype(np.float64) for parts in (returns, values))
    expected = 1 - np.var(g - v) / np.var(g)
    got = value_step.explained_variance(predict, params, batches)
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    single = [value_step.explained_variance(predict, params, [batch]) for batch in batches]
    assert abs(np.mean(single) - expected) > 1e-3  # a mean of ratios would be another number


def test_constant_returns_have_nothing_to_explain(predict):
    params = {"value_head": {"kernel": np.zeros(cases.VOCABULARY, np.float32)}}
    zero = [cases.trajectory([0, 1, 1], ticket=i, seed=i, reward=0.0) for i in range(3)]
    assert np.isnan(
        value_step.explained_variance(predict, params, [cases.pack(zero, rows=4, slots=8)])
    )
    assert np.isnan(value_step.explained_variance(predict, params, []))


def test_the_critic_learns_to_explain():
    critic = cases.small_critic()
    params = critic.init(jax.random.key(0))
    optimizer = cases.optimizer(params)
    step = value_step.make_value_step(critic, optimizer, discount=1.0, critic_lambda=1.0)
    of_critic = value_step.make_predict(critic, discount=1.0, critic_lambda=1.0)
    batch = cases.pack(cases.trajectories(8), rows=4, micro=2)
    state = state_lib.init_model_state(params, optimizer)
    before = value_step.explained_variance(of_critic, state.params, [batch])
    for _ in range(100):
        state, _ = step(state, batch)
    after = value_step.explained_variance(of_critic, state.params, [batch])
    assert before < 0.1
    assert after > 0.7
    assert step._cache_size() == 1
    # All of it trains here, the embedding too.
    assert cases.any_differs(state.params["embedding"], params["embedding"])
