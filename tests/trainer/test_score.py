"""Scores of recorded tokens, and the comparison with what the sampler recorded."""

import dataclasses

import jax
import numpy as np
import pytest
import trainer_cases as cases

from jaxrl_single.trainer import score


@pytest.fixture(scope="module")
def bigram():
    policy = cases.bigram_policy()
    return (
        policy.init(jax.random.key(0)),
        score.make_score(policy, chunk=cases.CHUNK),
        score.make_mismatch(policy, chunk=cases.CHUNK),
    )


def test_scores_are_the_log_probs_of_a_table_at_the_temperature(bigram):
    params, score_of, _ = bigram
    trajectories = cases.trajectories(5)
    batch = cases.pack(trajectories, rows=4, micro=2)
    logprobs, entropies = jax.device_get(score_of(params, batch))
    logits = np.asarray(params["unembedding"]["table"], np.float64).T
    for number, t in enumerate(trajectories):
        scaled = logits[t.tokens[:-1]] / t.temperature
        table = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        here = batch.trajectory_index == number
        expected = np.append(0, table[np.arange(len(table)), t.tokens[1:]])
        np.testing.assert_allclose(logprobs[here], expected, atol=1e-5)
        entropy = np.append(0, -(np.exp(table) * table).sum(axis=1))
        np.testing.assert_allclose(entropies[here], entropy, atol=1e-5)
    assert (logprobs[batch.trajectory_index < 0] == 0).all()


def test_the_mismatch_is_measured_on_sampled_tokens_only(bigram):
    params, score_of, mismatch_of = bigram
    batch = cases.pack(cases.trajectories(5), rows=4, micro=2)
    recorded = np.asarray(score_of(params, batch)[0])
    recorded = np.where(batch.action_mask, recorded, np.nan)
    same = mismatch_of(params, dataclasses.replace(batch, rollout_logprobs=recorded))
    assert same["maximum"] == same["mean"] == same["kl"] == 0
    assert same["tokens"] == batch.action_mask.sum()
    first = np.argmax(batch.action_mask)
    off = recorded.copy()
    off.reshape(-1)[first] -= 0.25  # the sampler claims a smaller probability
    one = mismatch_of(params, dataclasses.replace(batch, rollout_logprobs=off))
    count = batch.action_mask.sum()
    np.testing.assert_allclose(one["maximum"], 0.25, rtol=1e-5)
    np.testing.assert_allclose(one["mean"], 0.25 / count, rtol=1e-5)
    np.testing.assert_allclose(one["kl"], (np.exp(0.25) - 1 - 0.25) / count, rtol=1e-4)
