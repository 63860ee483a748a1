"""The alignment: what is said about token t comes from the state at t - 1 of its segment."""

import dataclasses
import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import trainer_cases as cases

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.trainer import forward


def _next_token_policy(certainty):
    """Puts the logit `certainty` on token id + 1 and 0 on all others."""
    size = cases.VOCABULARY
    return cases.policy_of(
        hidden=lambda params, tokens, *_: jax.nn.one_hot(tokens, size),
        unembedding=lambda params: certainty * jnp.roll(jnp.eye(size), 1, axis=0),
    )


def _last_token_critic():
    """The value after a token is its id + 100."""
    return api.Critic(
        config=cases.real_config("tiny"),
        init=None,
        values=lambda params, tokens, *_: tokens.astype(jnp.float32) + 100,
        from_policy=None,
    )


def _jitted(policy, chunk):
    return jax.jit(functools.partial(forward.policy_forward, policy, chunk=chunk))


def _micro():
    """Two segments of one trajectory and a second trajectory in one row, then padding."""
    first = cases.trajectory(
        [0, 1, 1, 0, 1],
        tokens=np.array([3, 4, 5, 5, 6], np.int32),
        segment_ids=np.array([1, 1, 1, 2, 2], np.int32),
        temperature=0.5,
    )
    second = cases.trajectory([0, 1, 1], ticket=1, tokens=np.array([7, 8, 3], np.int32))
    return token_batch.micro_batch(cases.pack([first, second], rows=1, row_length=10), 0)


def test_log_probs_are_of_the_token_at_their_place():
    micro = _micro()
    outputs = _jitted(_next_token_policy(3.0), 4)({}, micro)
    logprobs, entropies = outputs.logprobs, outputs.entropies
    assert outputs.aux_logprobs is outputs.topk_logprobs is outputs.full_logprobs is None
    others = cases.VOCABULARY - 1
    # log-prob of the predicted token and of any other, at temperature 1 and 0.5
    right = {t: 3 / t - np.log(np.exp(3 / t) + others) for t in (1.0, 0.5)}
    wrong = {t: -np.log(np.exp(3 / t) + others) for t in (1.0, 0.5)}
    # tokens 3 4 5 | 5 6 || 7 8 3; nothing precedes the first of a segment, not even a 5 before a 5
    expected = [0, right[0.5], right[0.5], 0, right[0.5], 0, right[1.0], wrong[1.0], 0, 0]
    np.testing.assert_allclose(logprobs[0], expected, atol=1e-6)
    p = np.exp(right[1.0])
    entropy = -p * right[1.0] - (1 - p) * wrong[1.0]
    np.testing.assert_allclose(entropies[0, 6:8], entropy, atol=1e-6)
    assert (np.asarray(entropies)[0, [0, 3, 5, 8, 9]] == 0).all()


def test_recorded_ids_are_scored_at_the_place_of_their_token():
    """Whole rows of a bigram table, at the temperature of the token; the rest picks from them."""
    policy = cases.bigram_policy()
    params = policy.init(jax.random.key(4))
    micro = _micro()
    rng = np.random.default_rng(5)
    aux, topk = (rng.integers(0, cases.VOCABULARY, (1, 10, k)).astype(np.int32) for k in (3, 2))
    micro = dataclasses.replace(
        micro, aux_tokens=aux, topk_tokens=topk, full_logprobs=np.zeros((1, 10, cases.VOCABULARY))
    )
    outputs = jax.device_get(_jitted(policy, 4)(params, micro))
    logits = np.asarray(params["unembedding"]["table"], np.float64).T
    expected = np.zeros((10, cases.VOCABULARY))
    for place in (1, 2, 4, 6, 7):  # those that have a predecessor in their segment
        row = logits[micro.tokens[0, place - 1]] / micro.temperature[0, place]
        expected[place] = row - np.log(np.exp(row).sum())
    np.testing.assert_allclose(outputs.full_logprobs[0], expected, atol=1e-5)
    for found, ids in ((outputs.aux_logprobs, aux), (outputs.topk_logprobs, topk)):
        np.testing.assert_allclose(
            found[0], np.take_along_axis(expected, ids[0], axis=1), atol=1e-5
        )
    plain = _jitted(policy, 4)(params, _micro())
    cases.assert_close(
        (outputs.logprobs, outputs.entropies), (plain.logprobs, plain.entropies), atol=1e-6
    )


def test_recorded_garbage_off_the_mask_changes_no_gradient():
    policy = cases.bigram_policy()
    params = policy.init(jax.random.key(4))
    micro = _micro()
    aux = np.full((1, 10, 2), 5, np.int32)
    weights = np.random.default_rng(6).normal(size=(1, 10, 2)) * micro.action_mask[..., None]

    @jax.jit
    @jax.grad
    def slope(params, aux):
        given = dataclasses.replace(micro, aux_tokens=aux)
        found = forward.policy_forward(policy, params, given, chunk=4)
        return jnp.sum(found.aux_logprobs * weights)

    clean = slope(params, aux)
    assert cases.any_differs(clean, jax.tree.map(jnp.zeros_like, clean))
    cases.assert_equal(slope(params, np.where(micro.action_mask[..., None], aux, 2**30)), clean)


def test_values_are_of_the_prefix_before_the_token():
    before, after = forward.critic_forward(_last_token_critic(), {}, _micro())
    assert before[0].tolist() == [0, 103, 104, 0, 105, 0, 107, 108, 0, 0]
    assert after[0, :8].tolist() == [103, 104, 105, 105, 106, 107, 108, 103]


def test_bootstrap_values_are_of_the_whole_trajectory_and_only_where_it_was_cut():
    cut = {"terminated": False, "truncated": True}
    given = [
        cases.trajectory([0, 1, 1, 0], tokens=np.array([1, 2, 3, 9], np.int32), **cut),
        cases.trajectory([0, 1, 1], ticket=1, tokens=np.array([1, 2, 4], np.int32)),
        cases.trajectory([0, 1], ticket=2, tokens=np.array([1, 5], np.int32), **cut),
    ]
    batch = cases.pack(given, rows=4, micro=2, row_length=5, slots=5, on_limit="bootstrap")
    after = jnp.stack(
        [
            forward.critic_forward(_last_token_critic(), {}, token_batch.micro_batch(batch, i))[1]
            for i in range(2)
        ]
    )
    values = forward.bootstrap_values(after, batch)
    assert values.tolist() == [109, 0, 105, 0, 0]


def test_the_chunk_changes_nothing():
    policy = cases.small_policy()
    params = policy.init(jax.random.key(0))
    micro = token_batch.micro_batch(cases.pack(cases.trajectories(9)), 0)
    whole = _jitted(policy, 24)(params, micro)
    parts = _jitted(policy, 5)(params, micro)
    cases.assert_close(whole, parts, atol=1e-6)


def test_a_large_vocabulary_makes_chunks_smaller():
    """Of 2^17 tokens of a vocabulary, 16 million logits at one time: 32 tokens of 4 rows."""
    rows, length, size, vocab_size = 4, 80, 2, 2**17
    policy = cases.policy_of(
        hidden=lambda params, tokens, *_: jnp.zeros((*tokens.shape, size)),
        unembedding=lambda params: params,
    )
    given = [cases.trajectory([0] + [1] * (length - 1), ticket=n) for n in range(rows)]
    micro = token_batch.micro_batch(cases.pack(given, rows=rows, row_length=length), 0)
    table = jax.ShapeDtypeStruct((vocab_size, size), jnp.float32)
    jaxpr = jax.make_jaxpr(_jitted(policy, 1024))(table, micro).jaxpr
    assert _over(vocab_size, jaxpr) == {(rows, 32)}


def _over(vocab_size, jaxpr):
    """First two axes of arrays that have the vocabulary behind them, inner jaxprs included."""
    shapes = [variable.aval.shape for e in jaxpr.eqns for variable in e.outvars]
    found = {shape[:2] for shape in shapes if vocab_size in shape[2:]}
    inner = [j for e in jaxpr.eqns for j in jax.extend.core.jaxprs_in_params(e.params)]
    return found.union(*(_over(vocab_size, j) for j in inner))
