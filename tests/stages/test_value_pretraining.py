"""Value pretraining: what it learns comes out, whenever it was measured."""

import functools

import jax
import ml_collections
import numpy as np
import pytest

from jaxrl_single.stages import placement, value_pretraining
from tests.trainer import trainer_cases as cases

ONE_DEVICE = {"data": 1, "fsdp": 1}


def train(trajectories, mesh=ONE_DEVICE, **changes):
    """(parameters before and after, explained variance, metrics by step) of a small critic."""
    critic = cases.small_critic()
    start = jax.device_get(critic.init(jax.random.key(0)))
    section = {"learning_rate": 0.05, "max_steps": 5, "patience": 9, "held_out_fraction": 0.5}
    reports = {}
    params, explained = value_pretraining.train(
        critic,
        start,
        trajectories,
        ml_collections.ConfigDict(section | changes),
        functools.partial(cases.pack, slots=8),
        placement=placement.make(ml_collections.ConfigDict({"trainer": {"mesh": mesh}})),
        batch_size=8,
        discount=1.0,
        critic_lambda=1.0,
        seed=0,
        report=reports.__setitem__,
    )
    return start, params, explained, reports


def largest_change(start, params):
    moved = jax.tree.map(lambda new, old: np.abs(new - old).max(), params, start)
    return max(jax.tree.leaves(moved))


@pytest.mark.parametrize(("max_steps", "eval_every", "measured"), [(3, 20, [3]), (5, 2, [2, 4, 5])])
def test_steps_after_the_last_round_measurement_are_not_lost(max_steps, eval_every, measured):
    given = cases.trajectories(16)
    start, params, explained, reports = train(given, max_steps=max_steps, eval_every=eval_every)
    name = "value_pretraining/explained_variance"
    found = {step: metrics[name] for step, metrics in reports.items() if name in metrics}
    assert sorted(found) == measured
    assert explained == max(found.values())
    assert largest_change(start, params) > 0.01


def test_what_was_learnt_of_equal_returns_stays():
    given = [
        cases.trajectory([False, True, True], ticket=number, seed=number, reward=1.0)
        for number in range(16)
    ]
    start, params, explained, _ = train(given, eval_every=2)
    assert np.isnan(explained)
    assert largest_change(start, params) > 0.01


def test_a_mesh_gives_the_numbers_of_one_device():
    mesh = {"data": 2, "fsdp": 2}
    _, params, explained, reports = train(cases.trajectories(16), mesh, eval_every=2)
    _, expected, found, on_one = train(cases.trajectories(16), eval_every=2)
    assert explained == pytest.approx(found, abs=1e-4)
    assert reports[5]["value_pretraining/loss"] == pytest.approx(
        on_one[5]["value_pretraining/loss"], rel=1e-4
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), params, expected)
    shardings = [leaf.sharding for leaf in jax.tree.leaves(params)]
    assert all(len(sharding.device_set) == 4 for sharding in shardings)
    assert not all(sharding.is_fully_replicated for sharding in shardings)
