"""What a step says of each token is what its update was made of."""

import numpy as np
import pytest
import trainer_cases as cases

from jaxrl_single.algorithms import arrays as arrays_lib
from jaxrl_single.algorithms import update
from jaxrl_single.data import token_batch
from jaxrl_single.trainer import forward

NAMES = {"policy_logprobs", "policy_entropies", "weights", "coefficients", "advantages"}


def make_batch(micro):
    given = [
        cases.trajectory([0, 0, 1, 1, 0, 1], ticket=i, seed=i, group_id=i // 2, reward=float(i % 2))
        for i in range(4)
    ]
    return cases.pack(given, rows=4, micro=micro, slots=6)


def expected_coefficients(trainer, batch, found):
    """By the function of the scorer, on all tokens at once."""
    lengths, denominator = update.reduction_inputs(
        trainer.algorithm, batch.loss_mask, batch.trajectory_index, batch.num_trajectories
    )
    arrays = arrays_lib.PolicyArrays(
        policy_logprobs=found["policy_logprobs"],
        policy_entropies=found["policy_entropies"],
        rollout_logprobs=batch.rollout_logprobs,
        entropies=batch.entropies,
        advantages=found["advantages"],
        loss_mask=batch.loss_mask,
        trajectory_index=batch.trajectory_index,
        trajectory_lengths=lengths,
        denominator=denominator,
        reward=batch.reward,
        group=batch.group,
        valid=batch.valid,
        turn_ids=batch.turn_ids,
    )
    coefficients, _, aux = update.score_coefficients(
        trainer.algorithm, arrays, trainer.initial.algorithm_state
    )
    return coefficients["policy_logprobs"], aux.weights


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("grpo", {}),
        pytest.param("sao", {}, marks=pytest.mark.slow),
        pytest.param(
            "flash_reinforce", {"keep_rule.delta": 1e3}, marks=pytest.mark.long, id="coupled"
        ),
    ],
)
def test_coefficients_are_slopes_of_the_loss(algorithm, overrides):
    trainer = cases.Trainer(algorithm=algorithm, overrides=overrides)
    batch = make_batch(micro=2)
    found = trainer.evidence(batch)
    assert set(found) >= NAMES
    coefficients, weights = expected_coefficients(trainer, batch, found)
    np.testing.assert_allclose(found["coefficients"], coefficients, atol=1e-6)
    np.testing.assert_allclose(found["weights"], weights, atol=1e-6)
    assert np.abs(found["coefficients"]).max() > 1e-3
    logprobs = [
        forward.policy_forward(
            trainer.policy,
            trainer.initial.policy_params,
            token_batch.micro_batch(batch, number),
            chunk=cases.CHUNK,
        ).logprobs
        for number in range(len(batch.tokens))
    ]
    np.testing.assert_allclose(found["policy_logprobs"], logprobs, atol=1e-6)
    if algorithm == "sao":
        only = trainer.evidence(batch, critic_only=True)
        assert np.isnan(only["coefficients"]).all()
        np.testing.assert_array_equal(only["values"], found["values"])
        np.testing.assert_array_equal(only["advantages"], found["advantages"])
