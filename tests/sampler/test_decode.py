"""Drawing one token from a row of logits, and what a chunk of decode steps says of its tokens."""

import dataclasses

import decode_lab
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampler_lab as lab

from jaxrl_single import types
from jaxrl_single.ops import logprobs as logprob_ops
from jaxrl_single.sampler import decode

RECORD = types.Record(num_aux=3, topk=2, full=True, experts=True)
# Slots 1 and 4 stay plain.
RESTRICTED = {
    0: lab.request(temperature=0.0),
    2: lab.request(top_k=3, temperature=0.7),
    3: lab.request(top_p=0.5, logit_bias=((3, 2.0), (4, -1.0))),
    5: lab.request(min_p=0.2, allowed_token_ids=(1, 2, 3, 4, 9)),
}


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)])
def optimised_programs(request):
    """Where bits are compared: also in the programs that users run, which take long to compile."""
    before = jax.config.read("jax_disable_most_optimizations")
    if request.param:
        jax.config.update("jax_disable_most_optimizations", False)
        jax.clear_caches()
    yield
    if request.param:
        jax.config.update("jax_disable_most_optimizations", before)
        jax.clear_caches()


@jax.jit
def _draw(table, uniforms):
    tokens = decode.draw(table, uniforms)
    return tokens, logprob_ops.pick(table, tokens), logprob_ops.entropy(table)


def _draw_at(row, uniforms, temperature=1.0):
    """(tokens, log-probs, entropies) of a row at many uniforms."""
    table = logprob_ops.log_softmax(jnp.asarray(row, jnp.float32), temperature)
    rows = jnp.broadcast_to(table, (len(uniforms), len(row)))
    return [np.asarray(x) for x in _draw(rows, jnp.asarray(uniforms))]


def _softmax(row, temperature):
    scaled = np.asarray(row, np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max())
    return probabilities / probabilities.sum()


@pytest.mark.parametrize("vocab_size", [37, 300])  # one level and two
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_every_token_gets_its_share_of_the_unit_interval(temperature, vocab_size):
    row = np.random.default_rng(0).normal(size=vocab_size)
    count = 20_000
    uniforms = (np.arange(count, dtype=np.float32) + 0.5) / count
    tokens, logprobs, entropies = _draw_at(row, uniforms, temperature)
    expected = _softmax(row, temperature)
    # The ends of an interval may fall on either side: 2 points, and a little float32 rounding.
    np.testing.assert_allclose(
        np.bincount(tokens, minlength=vocab_size) / count, expected, atol=3 / count
    )
    np.testing.assert_allclose(logprobs, np.log(expected)[tokens], atol=2e-6)
    np.testing.assert_allclose(entropies, -(expected * np.log(expected)).sum(), atol=2e-6)


@pytest.mark.parametrize(
    "row",
    [
        [-np.inf, 0.0, -np.inf, 1.0, -np.inf],
        [-500.0, 0.0, -500.0, 1.0, -500.0],
    ],
)
def test_an_impossible_token_is_never_drawn(row):
    uniforms = np.float32(
        [0.0, 1e-30, 0.2689, 0.26895, 0.5, 1 - 2**-23, np.nextafter(1, 0, dtype=np.float32)]
    )
    tokens, logprobs, entropies = _draw_at(row, uniforms)
    assert set(tokens) == {1, 3}
    assert np.isfinite(logprobs).all()
    np.testing.assert_allclose(entropies, 0.58220, atol=1e-5)  # of (e / (1 + e), 1 / (1 + e))


def test_rounding_of_partial_sums_draws_no_impossible_token():
    """Rows of tiny and zero probabilities, thresholds at and around every partial sum."""
    rng = np.random.default_rng(1)
    for vocab_size in (60, 60, 300, 300, 1000):
        row = rng.normal(size=vocab_size) * 8
        row[rng.random(vocab_size) < 0.5] = -np.inf
        sums = np.cumsum(_softmax(row, 1.0)).astype(np.float32)
        near = np.concatenate([sums, np.nextafter(sums, 0), np.nextafter(sums, 2)])
        uniforms = np.clip(near, 0, np.nextafter(np.float32(1), np.float32(0)))
        tokens, logprobs, _ = _draw_at(row, uniforms.astype(np.float32))
        assert np.isfinite(row[tokens]).all()
        assert np.isfinite(logprobs).all()


def test_tokens_are_in_the_order_of_their_sums():
    """Against a search in numpy's float64 sums, wherever rounding cannot decide."""
    rng = np.random.default_rng(2)
    for vocab_size in (5, 256, 257, 5000):
        row = rng.normal(size=vocab_size) * 3
        sums = np.cumsum(_softmax(row, 1.0))
        uniforms = rng.random(600).astype(np.float32)
        clear = np.abs(sums[None, :] - uniforms[:, None]).min(axis=1) > 1e-6
        tokens, _, _ = _draw_at(row, uniforms)
        expected = np.searchsorted(sums, uniforms, side="right")
        assert clear.sum() > 500
        np.testing.assert_array_equal(tokens[clear], expected[clear])


def test_a_certain_token_has_log_prob_and_entropy_zero():
    tokens, logprobs, entropies = _draw_at([0.0, 2000.0, 0.0], np.float32([0.0, 0.9]))
    assert list(tokens) == [1, 1]
    assert list(logprobs) == [0.0, 0.0]
    assert list(entropies) == [0.0, 0.0]


def _same(one: dict, other: dict) -> None:
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


@pytest.mark.usefixtures("optimised_programs")
def test_a_plain_slot_has_the_same_bits_beside_restricted_ones():
    plain = decode_lab.chunk(decode_lab.rows_of(), RECORD)
    mixed = decode_lab.chunk(decode_lab.rows_of(requests=RESTRICTED), RECORD)
    for slot in (1, 4):
        _same(decode_lab.of_slot(plain, slot), decode_lab.of_slot(mixed, slot))
        np.testing.assert_array_equal(plain.expert_ids[:, slot], mixed.expert_ids[:, slot])
    for slot in RESTRICTED:
        alone = decode_lab.rows_of(requests={slot: RESTRICTED[slot]})
        alone = decode_lab.of_slot(decode_lab.chunk(alone, RECORD), slot)
        _same(alone, decode_lab.of_slot(mixed, slot))
        assert (alone["logprobs"] != alone["untruncated_logprobs"]).any()


@pytest.mark.usefixtures("optimised_programs")
def test_rescoring_with_forced_tokens_gives_the_same_bits():
    rows = decode_lab.rows_of(requests=RESTRICTED)
    drawn = decode_lab.chunk(rows, RECORD)
    rescored = decode_lab.chunk(
        dataclasses.replace(rows, forced=drawn.tokens, seeds=rows.seeds + np.uint32(5)), RECORD
    )
    for slot in range(decode_lab.NUM_SLOTS):
        one, other = (decode_lab.of_slot(chunk, slot) for chunk in (drawn, rescored))
        for name in ("aux_tokens", "aux_logprobs"):  # draws of another seed
            assert (one.pop(name) != other.pop(name)).any()
        _same(one, other)


def test_untruncated_log_probs_are_the_trainers_under_every_restriction():
    """B13; and what was really drawn from is the restricted distribution."""
    sampled = decode_lab.chunk(decode_lab.rows_of(requests=RESTRICTED), RECORD)
    for slot, prompt in enumerate(decode_lab.PROMPTS):
        found = decode_lab.of_slot(sampled, slot)
        tokens = prompt + found["tokens"].tolist()
        temperature = RESTRICTED[slot].temperature or 1.0 if slot in RESTRICTED else 1.0
        table = lab.rescore("tiny_moe", 0, tokens, temperature)[len(prompt) :]
        at = np.arange(len(table))
        assert len(table) == 8 - len(prompt) + 1
        np.testing.assert_allclose(
            found["untruncated_logprobs"], table[at, found["tokens"]], atol=2e-5
        )
        np.testing.assert_allclose(found["full_logprobs"], table, atol=2e-4)
        np.testing.assert_allclose(found["entropies"], -(np.exp(table) * table).sum(-1), atol=2e-5)
        restricted = np.stack([_restricted(row, RESTRICTED.get(slot)) for row in table])
        np.testing.assert_allclose(found["logprobs"], restricted[at, found["tokens"]], atol=3e-5)


def _restricted(row, request):
    """The distribution of each of the RESTRICTED requests, in float64."""
    scores = np.asarray(row, np.float64)
    if request is None:
        return scores
    for token, value in request.logit_bias:
        scores[token] += value
    if request.allowed_token_ids:
        scores[[t for t in range(len(row)) if t not in request.allowed_token_ids]] = -np.inf
    order = np.argsort(-scores)
    masses = np.exp(scores - np.log(np.exp(scores).sum()))
    kept = len(row)
    if request.temperature == 0 or request.top_k:
        kept = request.top_k or 1
    if request.top_p < 1:
        kept = np.searchsorted(np.cumsum(masses[order]), request.top_p) + 1
    scores[order[kept:]] = -np.inf
    if request.min_p:
        scores[scores < scores.max() + np.log(request.min_p)] = -np.inf
    return scores - np.log(np.exp(scores).sum())


def test_forced_tokens_that_cannot_be_drawn_have_no_probability():
    rows = decode_lab.rows_of(requests=RESTRICTED)
    free = decode_lab.chunk(rows, RECORD)
    forced = np.full_like(rows.forced, decode.NO_TOKEN)
    forced[3, 0] = forced[3, 5] = 20  # greedy; allowed are others
    sampled = decode_lab.chunk(dataclasses.replace(rows, forced=forced), RECORD)
    for slot in (0, 5):
        assert sampled.tokens[3, slot] == 20 != free.tokens[3, slot]
        assert sampled.logprobs[3, slot] == -np.inf
        assert np.isfinite(sampled.untruncated_logprobs[3, slot])
        np.testing.assert_array_equal(sampled.tokens[:3, slot], free.tokens[:3, slot])
    assert (sampled.logprobs[4:, 0] == 0).all()


def test_the_seed_of_a_slot_names_its_randomness():
    """The uniform of the documented key falls into the token's part of the unit interval."""
    seeds = np.array([0, 1, 2**31, 2**32 - 1, 11, 12], np.uint32)
    rows = decode_lab.rows_of(seeds=seeds, turns=np.full(6, 3, np.uint32))
    sampled = decode_lab.chunk(rows, RECORD)
    for slot, seed in enumerate(seeds):
        found = decode_lab.of_slot(sampled, slot)
        assert sampled.counts[slot] > 3
        for index in range(sampled.counts[slot]):
            token, row = found["tokens"][index], found["full_logprobs"][index]
            key = jax.random.key(int(seed) if seed < 2**31 else seed)
            for number in (slot, 0, 3, index):
                key = jax.random.fold_in(key, number)
            cdf = np.append(0, np.cumsum(np.exp(row.astype(np.float64))))
            assert cdf[token] - 1e-6 <= float(jax.random.uniform(key)) <= cdf[token + 1] + 1e-6


def test_rows_that_no_slot_wants_are_zeros_and_change_nothing():
    wanted = decode_lab.chunk(decode_lab.rows_of(), RECORD)
    nobody = decode_lab.chunk(decode_lab.rows_of(wanted=np.zeros(6, bool)), RECORD)
    np.testing.assert_array_equal(nobody.tokens, wanted.tokens)
    np.testing.assert_array_equal(nobody.logprobs, wanted.logprobs)
    np.testing.assert_array_equal(nobody.expert_ids, wanted.expert_ids)
    assert all((array == 0).all() for array in nobody.recorded.values())
    assert all((array != 0).any() for array in wanted.recorded.values())


def test_budgets_and_stop_tokens_end_a_slot_and_the_chunk():
    free = decode_lab.chunk(decode_lab.rows_of(), RECORD)
    stop_tokens = np.full((6, 3), decode.NO_TOKEN, np.int32)
    stop_tokens[0, 2] = free.tokens[2, 0]
    budgets = np.array([9, 1, 1, 4, 2, 3], np.int32)
    rows = decode_lab.rows_of(budgets=budgets, stop_tokens=stop_tokens)
    sampled = decode_lab.chunk(rows, RECORD)
    first = free.tokens[:, 0].tolist().index(free.tokens[2, 0])
    assert sampled.counts.tolist() == [first + 1, 1, 1, 4, 2, 3]
    assert sampled.stopped.tolist() == [True] + [False] * 5
    assert sampled.steps == 5  # slot 4 feeds four tokens and samples in the fourth and fifth step
    for slot in range(6):
        one, other = (decode_lab.of_slot(chunk, slot) for chunk in (sampled, free))
        _same(one, {name: row[: sampled.counts[slot]] for name, row in other.items()})


def test_the_experts_are_those_of_the_token_that_was_read():
    """Against a prefill of the same tokens, sampled ones among them."""
    rows = decode_lab.rows_of()
    sampled = decode_lab.chunk(rows, RECORD)
    tokens = np.stack(
        [
            [*prompt, *decode_lab.of_slot(sampled, slot)["tokens"]][: decode_lab.NUM_STEPS]
            for slot, prompt in enumerate(decode_lab.PROMPTS)
        ]
    ).astype(np.int32)
    zeros = np.zeros(decode_lab.NUM_SLOTS, np.int32)
    pieces = decode.PrefillRows(tokens, zeros, zeros, zeros + tokens.shape[1], rows.table)
    policy = lab.policy_of("tiny_moe")
    cache = policy.init_cache(len(rows.owner), decode_lab.PAGE_SIZE)
    serving = policy.serving(lab.params_of("tiny_moe", 0))
    _, expert_ids = decode.prefill(policy, serving, cache, pieces)
    np.testing.assert_array_equal(np.moveaxis(expert_ids, 0, 1), sampled.expert_ids)
    assert sampled.expert_ids.dtype == np.int16
    assert len(np.unique(sampled.expert_ids)) > 2
