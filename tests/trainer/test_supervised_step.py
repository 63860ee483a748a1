"""The warm start's step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trainer_cases as cases

from jaxrl_single.metrics import names
from jaxrl_single.trainer import state as state_lib
from jaxrl_single.trainer import supervised_step


@pytest.fixture(scope="module")
def tabular():
    """A table of logits [next, token], and its step under plain gradient descent."""
    policy = cases.bigram_policy()
    params = policy.init(jax.random.key(0))
    optimizer = cases.optimizer(params, transform=optax.sgd(1.0))
    return optimizer, supervised_step.make_supervised_step(policy, optimizer, chunk=cases.CHUNK)


def _step(tabular, logits, batch):
    optimizer, step = tabular
    params = {"unembedding": {"table": jnp.asarray(logits)}}
    return step(state_lib.init_model_state(params, optimizer), batch)


def test_the_loss_is_the_mean_over_trained_tokens_in_any_split(tabular):
    # A: one trained token with loss 4. B: three with loss 0, and six tool tokens.
    # A mean of means would say 2, counting tool tokens 0.4.
    logits = np.zeros((cases.VOCABULARY, cases.VOCABULARY), np.float32)
    logits[3, 2] = 60.0  # after 2 comes 3 for certain
    logits[:, 1] = -80.0
    logits[5:7, 1] = (0.0, np.log(np.exp(4) - 1))  # after 1 comes 5 with probability exp(-4)
    one = cases.trajectory([0, 1], tokens=np.array([1, 5], np.int32))
    tokens = np.array([2, 3, 9, 9, 2, 3, 9, 9, 2, 3], np.int32)
    other = cases.trajectory([0, 1, 0, 0, 0, 1, 0, 0, 0, 1], ticket=1, tokens=tokens)
    results = []
    for micro in (2, 1):
        batch = cases.pack([one, other], rows=2, micro=micro, row_length=11)
        results.append(_step(tabular, logits, batch))
        np.testing.assert_allclose(results[-1][1]["warm_start/loss"], 1.0, rtol=1e-6)
        assert results[-1][1]["train/action_tokens"] == 4
    cases.assert_close(results[0], results[1], atol=1e-6)
    # Gradient of -log p(5 | 1) / 4 by hand: (p - onehot) / 4.
    moved = np.asarray(results[0][0].params["unembedding"]["table"])[:, 1] - logits[:, 1]
    np.testing.assert_allclose(moved[5], (1 - np.exp(-4)) / 4, rtol=1e-5)
    np.testing.assert_allclose(moved[6], -(1 - np.exp(-4)) / 4, rtol=1e-5)


def test_observations_and_limits_are_not_imitated(tabular):
    logits = np.asarray(cases.bigram_policy().init(jax.random.key(4))["unembedding"]["table"])
    trajectory = cases.trajectory([0, 1, 0, 1, 0], truncated=True, terminated=False)
    state, metrics = _step(
        tabular, logits, cases.pack([trajectory], rows=2, row_length=11, slots=2)
    )
    changed = (np.asarray(state.params["unembedding"]["table"]) != logits).any(axis=0)
    assert set(np.flatnonzero(changed)) == set(trajectory.tokens[[0, 2]])
    masked = cases.pack([trajectory], rows=2, row_length=11, slots=2, on_limit="mask")
    state, metrics = _step(tabular, logits, masked)
    cases.assert_equal(state.params["unembedding"]["table"], jnp.asarray(logits))
    assert metrics["train/empty_update"] == 1
    assert metrics["warm_start/loss"] == 0


def test_it_learns_and_donates_and_compiles_once():
    policy = cases.small_policy()
    params = policy.init(jax.random.key(0))
    optimizer = cases.optimizer(params)
    step = supervised_step.make_supervised_step(policy, optimizer, chunk=cases.CHUNK)
    state = state_lib.init_model_state(params, optimizer)
    batch = cases.pack(cases.trajectories(5), rows=4, micro=2)
    losses = []
    for _ in range(30):
        before = state
        state, metrics = step(state, batch)
        losses.append(float(metrics["warm_start/loss"]))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert not params["embedding"]["table"].is_deleted()  # the caller keeps its own
    assert losses[-1] < 0.5 * losses[0]
    assert step._cache_size() == 1
    assert state.step == 30
    for name in metrics:
        names.check(name)

    nothing = dataclasses.replace(batch, loss_mask=np.zeros_like(batch.loss_mask))
    kept = jax.tree.map(np.asarray, dataclasses.replace(state, step=31))
    state, metrics = step(state, nothing)
    cases.assert_equal(kept, dataclasses.replace(state, step=int(state.step)))
    assert metrics["train/empty_update"] == 1
