"""Rows whose loss joins tokens of several micro-batches: the split must change nothing."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
import trainer_cases as cases

from jaxrl_single import types

LENGTHS = (7, 5, 3, 6)
NUM_AUX = 3
ROWS = {
    "flash_reinforce": {"keep_rule.delta": 0.1},
    "gspo": {"objective.low": 0.5, "objective.high": 0.5},
    "klpo_sequence": {},
    "estr": {"keep_rule.masked_fraction": 0.3},
    "m2po": {"keep_rule.budget": 0.01},
    "vapo": {},
    "rlef": {},
}


def with_draws(trajectory):
    """Adds auxiliary draws, as a sampler records them."""
    rng = np.random.default_rng(trajectory.ticket)
    shape = (trajectory.num_actions, NUM_AUX)
    return dataclasses.replace(
        trajectory,
        aux_tokens=rng.integers(0, cases.VOCABULARY, shape).astype(np.int32),
        aux_logprobs=-rng.exponential(size=shape).astype(np.float32),
    )


def make_batch(micro):
    given = [
        with_draws(
            cases.trajectory(
                [0] * 15 + [1] * length, ticket=i, seed=i, group_id=i // 2, reward=float(i % 2)
            )
        )
        for i, length in enumerate(LENGTHS)
    ]
    for trajectory in given:
        types.validate(trajectory)
    recorded = types.Record(num_aux=NUM_AUX).widths(cases.VOCABULARY)
    return cases.pack(given, rows=4, micro=micro, slots=4, recorded=recorded)


QUICK = ("flash_reinforce", "klpo_sequence")  # a gate and a regression; one row compiles for long
SLOW = ("vapo",)  # a further term


def rows():
    marks = dict.fromkeys(ROWS, pytest.mark.long) | dict.fromkeys(SLOW, pytest.mark.slow)
    return [n if n in QUICK else pytest.param(n, marks=marks[n]) for n in ROWS]


@pytest.fixture(scope="module", params=rows())
def trainer(request):
    made = cases.Trainer(
        policy=cases.bigram_policy(),
        critic=cases.lookup_critic(),
        algorithm=request.param,
        overrides=ROWS[request.param],
        policy_transform=optax.sgd(0.7),  # the parameters show the gradient itself
        critic_transform=optax.sgd(0.4),
    )
    reference = jax.tree.map(lambda leaf: leaf + 0.1, made.initial.policy_params)
    made.initial = dataclasses.replace(made.initial, reference_params=reference)
    return made


def test_the_split_into_micro_batches_changes_nothing(trainer):
    whole, apart = (trainer.step(make_batch(micro)) for micro in (4, 1))
    cases.assert_close(whole, apart, atol=2e-6)
    assert cases.any_differs(whole[0].policy_params, trainer.initial.policy_params)
    assert trainer.algorithm.couples


def test_garbage_under_the_masks_changes_no_bit(trainer):
    batch = make_batch(1)
    spoiled = {}
    for name in ("rollout_logprobs", "rewards", "entropies", "aux_logprobs"):
        array = getattr(batch, name).copy()
        array[~batch.action_mask] = np.nan
        spoiled[name] = array
    clean = trainer.step(batch)
    cases.assert_equal(clean, trainer.step(dataclasses.replace(batch, **spoiled)))


def test_estr_keeps_the_threshold_of_its_first_batch():
    trainer = cases.Trainer(algorithm="estr", overrides=ROWS["estr"])
    assert np.isnan(trainer.initial.algorithm_state["keep_rule"]["tau"])
    first, _ = trainer.step(make_batch(2))
    tau = float(first.algorithm_state["keep_rule"]["tau"])
    assert np.isfinite(tau)
    second, _ = trainer.step(make_batch(2), state=first)
    assert float(second.algorithm_state["keep_rule"]["tau"]) == tau
