"""An update of the train step keeps within its budget of KL divergence, measured by definition."""

import dataclasses

import jax
import numpy as np
import pytest
import trainer_cases as cases

from jaxrl_single.trainer import kl_step

BUDGET = 1e-4
LENGTHS = (7, 5, 3, 6)


def make_batch(micro):
    given = [
        cases.trajectory([0] * 3 + [1] * length, ticket=i, seed=i, reward=float(i % 2))
        for i, length in enumerate(LENGTHS)
    ]
    given = [dataclasses.replace(given[0], temperature=0.7), *given[1:]]
    return cases.pack(given, rows=4, micro=micro, slots=4)


def trainer(**changes):
    return cases.Trainer(algorithm="reinforce", **changes)


@pytest.fixture(scope="module")
def free():
    return trainer()


@pytest.fixture(scope="module")
def bounded():
    return trainer(kl=kl_step.Budget(BUDGET))


def true_kl(policy, before, after, batch):
    """Mean over loss tokens of sum p log(p / p'), from whole rows of logits in float64."""
    total = 0.0
    for micro in range(len(batch.tokens)):
        tables = []
        for params in (before, after):
            rows = (batch.tokens[micro], batch.positions[micro], batch.segment_ids[micro])
            hidden = np.asarray(policy.hidden(params, *rows), np.float64)
            logits = hidden @ np.asarray(policy.unembedding(params), np.float64).T
            logits = logits[:, :-1] / batch.temperature[micro][:, 1:, None]
            tables.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
        per_token = (np.exp(tables[0]) * (tables[0] - tables[1])).sum(-1)
        total += per_token[batch.loss_mask[micro][:, 1:]].sum()
    return total / batch.loss_mask.sum()


def test_an_update_spends_its_budget_and_no_more(free, bounded):
    batch = make_batch(4)
    before = free.initial.policy_params
    whole, _ = free.step(batch)
    short, metrics = bounded.step(batch)
    assert true_kl(free.policy, before, whole.policy_params, batch) > 4 * BUDGET
    spent = true_kl(free.policy, before, short.policy_params, batch)
    np.testing.assert_allclose(spent, BUDGET, rtol=0.1)  # the prediction is of second order
    scale = float(metrics["policy/step_scale"])
    assert 0 < scale < 0.5
    on_the_line = jax.tree.map(
        lambda old, new: old + scale * (new - old), before, whole.policy_params
    )
    cases.assert_close(short.policy_params, on_the_line, atol=1e-6)


def test_a_short_update_is_taken_whole(free):
    roomy = trainer(kl=kl_step.Budget(1e3))
    batch = make_batch(4)
    state, metrics = roomy.step(batch)
    assert metrics["policy/step_scale"] == 1
    cases.assert_close(state.policy_params, free.step(batch)[0].policy_params, atol=1e-7)


def test_a_short_update_is_lengthened_on_request(free):
    longer = trainer(kl=kl_step.Budget(1e3, max_scale=2.0))
    batch = make_batch(4)
    state, metrics = longer.step(batch)
    assert metrics["policy/step_scale"] == 2
    doubled = jax.tree.map(
        lambda old, new: old + 2 * (new - old),
        free.initial.policy_params,
        free.step(batch)[0].policy_params,
    )
    cases.assert_close(state.policy_params, doubled, atol=1e-6)


def test_the_split_into_micro_batches_changes_nothing(bounded):
    whole, apart = (bounded.step(make_batch(micro)) for micro in (4, 1))
    cases.assert_close(whole[0].policy_params, apart[0].policy_params, atol=2e-6)
    np.testing.assert_allclose(
        whole[1]["policy/predicted_kl"], apart[1]["policy/predicted_kl"], rtol=1e-4
    )


def test_a_batch_without_loss_tokens_moves_nothing(bounded):
    batch = make_batch(4)
    empty = dataclasses.replace(batch, loss_mask=np.zeros_like(batch.loss_mask))
    state, metrics = bounded.step(empty)
    cases.assert_equal(state.policy_params, bounded.initial.policy_params)
    assert metrics["policy/step_scale"] == 0
