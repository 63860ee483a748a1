"""The train step: against an independent numpy version, and what must not matter."""

import dataclasses

import jax
import numpy as np
import numpy_sao
import optax
import pytest
import trainer_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_single.algorithms import table
from jaxrl_single.metrics import names
from jaxrl_single.trainer import step

SLOTS = 7  # one shape for all batches of a trainer, so that it compiles once


@pytest.fixture(scope="module")
def trainer():
    """AdamW with weight decay, which moves weights whenever it is applied."""
    return cases.Trainer()


@pytest.fixture(scope="module")
def tabular():
    """Plain gradient descent, so that the parameters show the gradient itself."""
    return _tabular(critic_first=True)


@pytest.fixture(scope="module")
def without_critic():
    return cases.Trainer(algorithm="reinforce")


def _tabular(*, critic_first):
    return cases.Trainer(
        policy=cases.bigram_policy(),
        critic=cases.lookup_critic(),
        overrides={"keep_rule.low": 0.5, "keep_rule.high": 2.0, "num_critic_steps": 3},
        policy_transform=optax.sgd(0.7),
        critic_transform=optax.sgd(0.4),
        critic_first=critic_first,
    )


def _batch(given_, *, micro=2, **changes):
    return cases.pack(given_, rows=4, micro=micro, slots=SLOTS, **changes)


def _check_against_numpy(trainer, *, critic_first):
    trajectories = cases.trajectories(7, seed=3)
    state, metrics = trainer.step(_batch(trajectories, micro=4))
    start = jax.device_get(trainer.initial)
    logits, table_, expected = numpy_sao.step(
        trajectories,
        start.policy_params["unembedding"]["table"].T.astype(np.float64),
        start.critic_params["value_head"]["kernel"].astype(np.float64),
        rates=(0.7, 0.4),
        low=0.5,
        high=2.0,
        alpha=1.5,
        num_critic_steps=3,
        critic_first=critic_first,
    )
    got = state.policy_params["unembedding"]["table"].T
    np.testing.assert_allclose(got, logits, atol=2e-6)
    np.testing.assert_allclose(state.critic_params["value_head"]["kernel"], table_, atol=2e-6)
    assert 0 < expected["keep/fraction"] < 1
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)


def test_the_step_agrees_with_numpy(tabular):
    _check_against_numpy(tabular, critic_first=True)


def test_advantages_may_come_from_the_critic_before_its_update():
    _check_against_numpy(_tabular(critic_first=False), critic_first=False)


@pytest.mark.parametrize("lengths", [(7, 5, 3, 1), (7, 5, 3)])
def test_the_split_into_micro_batches_changes_nothing(tabular, lengths):
    # Rows of 7, 5, 3 and 1 trained tokens, at once and one by one; the second
    # case has a micro-batch with nothing to train.
    given_ = [cases.trajectory([0] * 15 + [1] * n, ticket=n, seed=n) for n in lengths]
    whole, apart = (tabular.step(_batch(given_, micro=micro)) for micro in (4, 1))
    cases.assert_close(whole, apart, atol=1e-6)
    assert cases.any_differs(whole[0].policy_params, tabular.initial.policy_params)


_GARBAGE = (np.nan, np.inf, -np.inf, 1e30, -3.0)


def _with_garbage(batch, seed):
    """Anything anywhere that a mask excludes."""
    rng = np.random.default_rng(seed)

    def spoil(array, where):
        array = array.copy()
        if array.dtype == np.float32:
            array[where] = rng.choice(_GARBAGE, where.sum())
        else:
            array[where] = rng.integers(-(2**31), 2**31 - 1, where.sum())
        return array

    regions = {
        "rollout_logprobs rewards entropies policy_versions turn_ids": ~batch.action_mask,
        "tokens positions temperature": batch.segment_ids == 0,
        "reward group task length": ~batch.valid,
    }
    changes = {
        name: spoil(getattr(batch, name), where)
        for fields, where in regions.items()
        for name in fields.split()
    }
    return dataclasses.replace(batch, **changes)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_lies_under_a_mask_does_not_matter_bit_for_bit(trainer, seed):
    batch = _batch(cases.trajectories(5))
    clean = trainer.step(batch)
    spoiled = trainer.step(_with_garbage(batch, seed))
    cases.assert_equal(clean, spoiled)
    assert cases.any_differs(clean[0].policy_params, trainer.initial.policy_params)


def test_garbage_does_not_matter_without_a_critic_either(without_critic):
    batch = _batch(cases.trajectories(5))
    clean = without_critic.step(batch)
    for seed in range(5):
        cases.assert_equal(clean, without_critic.step(_with_garbage(batch, seed)))
    start = without_critic.initial
    assert cases.any_differs(clean[0].policy_params, start.policy_params)
    cases.assert_equal(clean[0].critic_params, start.critic_params)


@pytest.mark.parametrize("critic_only", [False, True])
def test_nothing_to_train_changes_nothing_but_the_count(trainer, critic_only):
    # AdamW with weight decay and momentum would move the weights even so.
    warm, _ = trainer.step(_batch(cases.trajectories(5)))
    kept = jax.tree.map(np.asarray, dataclasses.replace(warm, step=2, key=()))
    empty = _batch([])
    after, metrics = trainer.step(empty, state=warm, critic_only=critic_only)
    assert after.step == 2
    cases.assert_equal(kept, dataclasses.replace(after, step=2, key=()))
    assert metrics["train/empty_update"] == 1
    assert metrics["train/nonfinite"] == 0
    assert metrics["critic/loss"] == 0
    assert np.isnan(metrics["critic/explained_variance"])
    if not critic_only:
        assert metrics["policy/loss"] == 0
        assert metrics["policy/gradient_norm"] == 0


def test_tokens_masked_at_the_limit_leave_the_denominator(tabular):
    # Half of the trajectories are cut: with on_limit "mask" the others train as if alone.
    given_ = cases.trajectories(3)
    cut = [
        cases.trajectory(t.action_mask, ticket=10 + t.ticket, terminated=False, truncated=True)
        for t in given_
    ]
    alone, metrics = tabular.step(_batch(given_, micro=4))
    both, metrics_both = tabular.step(_batch(given_ + cut, micro=4, on_limit="mask"))
    cases.assert_close(alone, both, atol=1e-6)
    np.testing.assert_allclose(metrics["policy/loss"], metrics_both["policy/loss"], atol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [("rollout_logprobs", np.nan), ("rewards", np.inf), ("rewards", np.nan)],
)
def test_a_loss_that_is_not_finite_leaves_the_whole_state(trainer, field, value):
    batch = _batch(cases.trajectories(5))
    array = getattr(batch, field).copy()
    first = tuple(places[0] for places in np.nonzero(batch.loss_mask))
    array[first] = value
    spoiled = dataclasses.replace(batch, **{field: array})
    after, metrics = trainer.step(spoiled)
    cases.assert_equal(after, trainer.initial)
    assert metrics["train/nonfinite"] == 1
    again, metrics = trainer.step(batch, state=after)
    assert metrics["train/nonfinite"] == 0
    cases.assert_equal(again, trainer.step(batch)[0])


def test_critic_only_steps_leave_the_policy_alone(trainer):
    batch = _batch(cases.trajectories(5))
    start = trainer.initial
    after, metrics = trainer.step(batch, critic_only=True)
    cases.assert_equal(
        (after.policy_params, after.policy_opt, after.algorithm_state, after.key),
        (start.policy_params, start.policy_opt, start.algorithm_state, start.key),
    )
    full, full_metrics = trainer.step(batch)
    cases.assert_equal(after.critic_params, full.critic_params)
    cases.assert_equal(after.critic_opt, full.critic_opt)
    assert cases.any_differs(after.critic_params, start.critic_params)
    assert np.isnan(metrics["policy/loss"])
    assert np.isfinite(full_metrics["policy/loss"])
    assert (metrics["train/critic_only"], full_metrics["train/critic_only"]) == (1, 0)
    assert set(metrics) == set(full_metrics)


def test_frozen_leaves_keep_their_bits_and_have_no_slots(trainer):
    batch = _batch(cases.trajectories(5))
    state = trainer.state()
    slots = jax.tree_util.tree_leaves_with_path(state.critic_opt)
    assert not [path for path, _ in slots if "embedding" in jax.tree_util.keystr(path)]
    assert [path for path, _ in slots if "value_head" in jax.tree_util.keystr(path)]
    for _ in range(3):
        state, _ = trainer.step(batch, state=state)
    cases.assert_equal(state.critic_params["embedding"], trainer.initial.critic_params["embedding"])
    for trained in ("layers", "value_head"):
        assert cases.any_differs(
            state.critic_params[trained], trainer.initial.critic_params[trained]
        )


def test_the_state_is_donated_and_one_program_serves_every_step(trainer):
    state = trainer.state()
    for seed, critic_only in ((0, True), (1, False), (2, True), (3, False)):
        before = state
        batch = _batch(cases.trajectories(5, seed=seed))
        state, _ = trainer.step(batch, state=state, critic_only=critic_only)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert state.step == 4
    assert trainer.jitted._cache_size() == 1


def test_every_metric_is_listed(trainer):
    _, metrics = trainer.step(_batch(cases.trajectories(5)))
    for name, value in metrics.items():
        names.check(name)
        assert value.shape == ()
        assert value.dtype == np.float32


def test_two_epochs_are_two_steps_on_the_same_batch(without_critic):
    # Without a critic the advantages of both are the same: only the policy moves between them.
    batch = _batch(cases.trajectories(6))
    state, _ = without_critic.step(batch)
    state, _ = without_critic.step(batch, state=state)
    twice = cases.Trainer(algorithm="reinforce", overrides={"num_policy_epochs": 2})
    together, _ = twice.step(batch)
    cases.assert_close(state.policy_params, together.policy_params, atol=1e-6)
    cases.assert_close(state.policy_opt, together.policy_opt, atol=1e-6)


def test_minibatches_are_updates_in_turn(without_critic):
    # A minibatch without loss tokens is no update, so each half can be run alone. Both halves
    # keep all rewards and so the same baseline.
    batch = _batch(cases.trajectories(6))
    state = without_critic.state()
    for half in (0, 1):
        mask = batch.loss_mask.copy()
        mask[1 - half] = False
        state, _ = without_critic.step(dataclasses.replace(batch, loss_mask=mask), state=state)
    halves = cases.Trainer(algorithm="reinforce", overrides={"num_minibatches": 2})
    together, _ = halves.step(batch)
    cases.assert_close(state.policy_params, together.policy_params, atol=1e-6)
    cases.assert_close(state.policy_opt, together.policy_opt, atol=1e-6)
    with pytest.raises(ValueError, match="num_minibatches=2"):
        halves.step(_batch(cases.trajectories(6), micro=4))


def test_a_proximal_ratio_does_not_read_the_recorded_log_probs():
    proximal = cases.Trainer(algorithm="grpo", overrides={"ratio_reference": "proximal"})
    given_ = [cases.trajectory([0, 1, 1, 0, 1], ticket=i, seed=i, group_id=0) for i in range(4)]
    batch = _batch(given_)
    shifted = dataclasses.replace(batch, rollout_logprobs=batch.rollout_logprobs - 5)
    one, other = (proximal.step(b)[0].policy_params for b in (batch, shifted))
    cases.assert_equal(one, other)
    assert cases.any_differs(one, proximal.initial.policy_params)


def test_a_critic_is_asked_for_when_the_row_needs_one():
    policy = cases.small_policy()
    optimizer = cases.optimizer(policy.init(jax.random.key(0)))
    with pytest.raises(ValueError, match="'sao' needs a critic"):
        step.make_train_step(
            policy,
            None,
            table.get("sao"),
            policy_optimizer=optimizer,
            critic_optimizer=None,
            critic_first=True,
            chunk=8,
        )
