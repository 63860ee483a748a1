"""What the engine records besides the tokens, when it is asked to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single import types
from jaxrl_single.ops import logprobs as logprob_ops
from jaxrl_single.sampler import recording

RECORD = types.Record(num_aux=5, topk=4, full=True)
NAMES = tuple(types.ACTION_FIELDS)


def _rows(answer):
    return [np.array(getattr(answer, name), types.ACTION_FIELDS[name]) for name in NAMES]


def test_the_tokens_are_those_of_an_engine_that_records_nothing(make_engine):
    plain = lab.play(make_engine(), 3, prompt=[4, 5])
    recorded = lab.play(make_engine(record=RECORD), 3, prompt=[4, 5])
    assert plain[0] == recorded[0]
    for (_, one), (_, other) in zip(plain[1], recorded[1], strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == other.logprobs
        assert [getattr(one, name) for name in NAMES] == [None] * 5


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("max_fed_tokens", [0, 64])
def test_all_rows_are_of_the_distribution_of_the_token(make_engine, temperature, max_fed_tokens):
    engine = make_engine(record=RECORD, max_fed_tokens=max_fed_tokens)
    tokens, answers = lab.play(engine, 1, prompt=range(9), temperature=temperature)
    table = lab.rescore("tiny_moe", 0, tokens, temperature)
    for start, answer in answers:
        aux, aux_logprobs, top, top_logprobs, full = _rows(answer)
        count = len(answer.tokens)
        assert count > 2
        assert (aux.shape, top.shape, full.shape) == ((count, 5), (count, 4), (count, 24))
        # Logits reach 30, where float32 has steps of 2e-6, before they are divided by 0.7.
        np.testing.assert_allclose(full, table[start : start + count], atol=2e-4)
        chosen = np.array(answer.tokens)[:, None]
        picked = [np.take_along_axis(full, ids, axis=1) for ids in (chosen, aux, top)]
        np.testing.assert_array_equal(picked[0][:, 0], np.float32(answer.logprobs))
        np.testing.assert_array_equal(picked[1], aux_logprobs)
        np.testing.assert_array_equal(picked[2], top_logprobs)
        np.testing.assert_array_equal(top_logprobs, -np.sort(-full, axis=1)[:, :4])


def test_draws_come_from_the_distribution_by_the_documented_randomness(make_engine):
    engine = make_engine(record=RECORD)
    for ticket in range(4):
        tokens, answers = lab.play(engine, ticket, prompt=[ticket, 3], temperature=0.8)
        table = lab.rescore("tiny_moe", 0, tokens, 0.8)
        for turn, (start, answer) in enumerate(answers):
            for index, draws in enumerate(answer.aux_tokens):
                key = jax.random.key(lab.SHAPE["seed"])
                for number in (ticket, 0, turn, index, recording.AUX):
                    key = jax.random.fold_in(key, number)
                cdf = np.cumsum(np.exp(table[start + index].astype(np.float64)))
                below = np.append(0.0, cdf)[draws]
                with jax.threefry_partitionable(False):
                    uniforms = np.asarray(jax.random.uniform(key, (5,)))
                assert (below - 1e-5 <= uniforms).all()
                assert (uniforms <= cdf[draws] + 1e-5).all()


def test_rows_are_bitwise_the_same_whatever_else_is_sampled(make_engine):
    alone = lab.play(make_engine(record=RECORD), 7, prompt=range(11))
    engine = make_engine(record=RECORD)
    crowd = [
        engine.submit(lab.request(f"c{t}", range(t % 20), ticket=t, max_new_tokens=9))
        for t in range(101, 106)
    ]
    engine.step()
    assert lab.play(engine, 7, prompt=range(11)) == alone
    lab.run(engine, *crowd)


def test_draws_have_the_right_shares_and_no_relation_to_the_token():
    """20 000 tokens of one distribution, with a token that is impossible, and 4 draws each."""
    count, record = 20_000, types.Record(num_aux=4)
    logits = jnp.append(jax.random.normal(jax.random.key(0), (6,)), -jnp.inf)
    table = jnp.broadcast_to(logprob_ops.log_softmax(logits, 1.0), (count, 7))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(1), jnp.arange(count))
    uniforms = recording.uniforms(record, keys)
    rows = jax.jit(recording.rows, static_argnums=0)(record, table, uniforms)
    draws = np.asarray(rows["aux_tokens"])
    expected = np.exp(np.asarray(table[0]))
    shares = np.bincount(draws.ravel(), minlength=7) / draws.size
    assert shares[6] == 0
    # 5 standard deviations of a share of 80 000 draws
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected / draws.size)).all()
    assert np.isfinite(rows["aux_logprobs"]).all()
    assert (draws[:, 0] == draws[:, 1]).any()  # with replacement
    of_token = jax.vmap(jax.random.uniform)(keys)
    together = np.corrcoef(np.column_stack([of_token, uniforms]), rowvar=False)
    assert np.abs(together - np.eye(5)).max() < 5 / np.sqrt(count)


@pytest.mark.parametrize(
    "restriction",
    [{"temperature": 0.0}, {"top_p": 0.8}, {"top_k": 4}, {"allowed_token_ids": (1, 2, 9)}],
    ids=str,
)
def test_restrictions_change_the_draw_and_nothing_that_is_recorded(make_engine, restriction):
    """What a trainer compares with is of the full distribution, whatever the token came from."""
    engine = make_engine(record=RECORD)
    asked = lab.request("s", range(9), max_new_tokens=12, **restriction)
    (answer,) = lab.run(engine, engine.submit(asked))
    table = lab.rescore("tiny_moe", 0, [*range(9), *answer.tokens], 1.0)[9:]
    at = np.arange(len(answer.tokens))
    aux, aux_logprobs, _, top_logprobs, full = _rows(answer)
    np.testing.assert_allclose(full, table, atol=2e-4)
    np.testing.assert_array_equal(full[at, answer.tokens], np.float32(answer.untruncated_logprobs))
    np.testing.assert_array_equal(np.take_along_axis(full, aux, axis=1), aux_logprobs)
    np.testing.assert_array_equal(top_logprobs, -np.sort(-full, axis=1)[:, :4])
    np.testing.assert_allclose(answer.entropies, -(np.exp(table) * table).sum(-1), atol=1e-4)
    restricted = np.array(answer.logprobs) - answer.untruncated_logprobs
    assert restricted.min() > -1e-5  # a share of fewer tokens is larger
    assert restricted.max() > 0.01
    assert len(np.unique(aux)) > len(np.unique(answer.tokens))


def test_rows_come_only_to_who_wants_them(make_engine):
    engine = make_engine(record=RECORD)
    with_rows, without = lab.run(
        engine,
        *(
            engine.submit(lab.request(f"{wants}", ticket=5, record=wants))
            for wants in (True, False)
        ),
    )
    assert with_rows.tokens == without.tokens
    assert with_rows.logprobs == without.logprobs
    assert [getattr(without, name) for name in NAMES] == [None] * 5
    assert all(len(getattr(with_rows, name)) == 6 for name in NAMES)


def test_turns_without_tokens_record_nothing(make_engine):
    engine = make_engine(record=RECORD)
    full_context = [1] * lab.SHAPE["cache_length"]
    (empty,) = lab.run(engine, engine.submit(lab.request("s", full_context)))
    assert (empty.tokens, empty.aux_tokens, empty.full_logprobs) == ([], None, None)


def test_more_likeliest_tokens_than_tokens_are_refused(make_engine):
    with pytest.raises(ValueError, match="topk is 25, the vocabulary has 24"):
        make_engine(record=types.Record(topk=25))
    with pytest.raises(ValueError, match="num_aux is -1"):
        types.Record(num_aux=-1)
