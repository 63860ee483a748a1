"""Prefill and decode over pages against the full forward; slots do not disturb one another."""

import jax
import jax.numpy as jnp
import model_lab as lab
import numpy as np
import paged_lab
import pytest

MANY = paged_lab.SLOTS * paged_lab.MAX_PAGES
LONG = [pytest.param(size, marks=pytest.mark.long) for size in ("tiny", *lab.OTHER_SIZES)]
MOST_FORMS = [*LONG, "tiny_moe"]
SCATTERED = [9, 2, 14, 7, 0, 5, 11, 3, 1, 8, 4, 15, 6, 10, 12, 13]


def _tokens(rows, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, lab.VOCAB_SIZE, (rows, lab.LENGTH)).astype(np.int32)


def _full_logprobs(size, tokens):
    """Full forward over one segment per row, two rows at most: [ROWS, LENGTH, V]."""
    policy, params = lab.policy_of(size), lab.params_of(size)
    positions = np.broadcast_to(np.arange(lab.LENGTH, dtype=np.int32), tokens.shape)
    hidden = lab.hidden_program(policy)(params, tokens, positions, np.ones_like(tokens))
    return np.asarray(jax.nn.log_softmax(hidden @ policy.unembedding(params).T))


def _prefill(pool, slot, tokens):
    for start in range(0, len(tokens), paged_lab.PAGE_SIZE):
        pool.prefill((slot, tokens[start : start + paged_lab.PAGE_SIZE], start))


def _play(pool, slot, tokens, *, prompt, others=()):
    """Prefills tokens[:prompt], decodes the rest; logits [len(tokens) - prompt, V].

    The others are (slot, tokens) with what they decode meanwhile at the end.
    """
    _prefill(pool, slot, tokens[:prompt])
    found = []
    for t in range(prompt, len(tokens)):
        at = {s: len(row) - len(tokens) + t for s, row in others}
        entries = {slot: (tokens[t], t)} | {s: (row[at[s]], at[s]) for s, row in others}
        found.append(pool.decode(entries)[0][slot])
    return np.stack(found)


@pytest.mark.parametrize("size", lab.FORMS)
def test_an_episode_of_two_turns_scores_as_the_full_forward_does(size):
    tokens = _tokens(2)
    full = _full_logprobs(size, tokens)
    pool = paged_lab.Pool(size, order=SCATTERED)
    found, expected = [], []

    def decode(**at):
        logits, _ = pool.decode({int(s[1:]): (tokens[row, t], t) for s, (row, t) in at.items()})
        for slot, (row, t) in at.items():
            found.append(jax.nn.log_softmax(logits[int(slot[1:])]))
            expected.append(full[row, t])

    # Row 0 in slot 3: a page and a piece in one call. Row 1 in slot 1.
    pool.prefill((3, tokens[0, :8], 0), (1, tokens[1, :5], 0), (3, tokens[0, 8:10], 8))
    for step in range(3):
        decode(s3=(0, 10 + step), s1=(1, 5 + step))
    # An observation follows in each: row 0 ends its page and begins the next one.
    pool.prefill((1, tokens[1, 8:13], 8), (3, tokens[0, 13:16], 13), (3, tokens[0, 16:18], 16))
    decode(s3=(0, 18), s1=(1, 13))
    for t in range(19, 24):
        decode(s3=(0, t))

    error = np.abs(np.stack(found) - np.stack(expected))
    assert error.max() < 2e-5
    assert error.mean() < 2e-6


@pytest.mark.parametrize("size", MOST_FORMS)
def test_a_slot_is_the_same_to_the_bit_in_every_pool_and_company(size):
    mine, *rows = _tokens(3, seed=1)
    others = list(zip((0, 3), rows, strict=True))
    pools = [
        paged_lab.Pool(size, num_pages=4),
        paged_lab.Pool(size),
        paged_lab.Pool(size, order=SCATTERED),
        paged_lab.Pool(size, order=SCATTERED[::-1]),
    ]
    for slot, row in others:  # they are a page ahead
        _prefill(pools[3], slot, row[:19])

    alone, *rest = [_play(pool, 2, mine[:14], prompt=9) for pool in pools[:3]]
    in_company = _play(pools[3], 2, mine[:14], prompt=9, others=others)

    for logits in (*rest, in_company):
        np.testing.assert_array_equal(logits, alone)


@pytest.mark.parametrize("size", MOST_FORMS)
def test_pages_of_a_prompt_are_the_same_to_the_bit_together_and_apart(size):
    mine, other = _tokens(2, seed=2)
    together, apart = (paged_lab.Pool(size) for _ in range(2))

    together.prefill((0, mine[:8], 0), (0, mine[8:16], 8), (0, mine[16:20], 16))
    apart.prefill((1, other[:8], 0), (0, mine[:8], 0))
    apart.prefill((0, mine[8:11], 8))
    apart.prefill((1, other[8:16], 8), (1, other[16:], 16), (0, mine[11:16], 11))
    apart.prefill((0, mine[16:20], 16))

    for a, b in zip(together.cache, apart.cache, strict=True):
        for page, twin in zip(together.pages[0], apart.pages[0], strict=True):
            width = 4 if page == together.pages[0][2] else 8
            np.testing.assert_array_equal(a[0][page, ..., :width], b[0][twin, ..., :width])
            np.testing.assert_array_equal(a[1][page, :, :width], b[1][twin, :, :width])
    np.testing.assert_array_equal(
        together.decode({0: (mine[20], 20)})[0][0], apart.decode({0: (mine[20], 20)})[0][0]
    )


def test_a_copied_prefix_and_a_resized_pool_go_on_to_the_bit():
    tokens, other = _tokens(2, seed=3)
    pool = paged_lab.Pool("tiny")
    pool.prefill((0, tokens[:8], 0), (0, tokens[8:11], 8))
    pool.cover(1, 11)
    pool.cache = pool.policy.copy_pages(
        pool.cache, np.array(pool.pages[0] + [0, 2]), np.array(pool.pages[1] + [MANY, 10**6])
    )
    pool.cache = pool.policy.resize_cache(pool.cache, MANY - 5)
    pool.cache = pool.policy.resize_cache(pool.cache, MANY)

    logits, _ = pool.decode({0: (other[0], 11), 1: (tokens[11], 11)})
    again, _ = pool.decode({0: (tokens[11], 11)})

    np.testing.assert_array_equal(again[0], logits[1])
    assert not np.array_equal(logits[0], logits[1])


def test_idle_slots_and_empty_rows_leave_the_cache_untouched():
    first, second = _tokens(2, seed=4)
    pool = paged_lab.Pool("tiny_moe")
    pool.prefill((0, first[:8], 0), (2, second[:6], 0))
    before = jax.tree.map(np.asarray, pool.cache)

    assert pool.prefill() == []
    lab.assert_trees_equal(pool.cache, before)
    logits, expert_ids = pool.decode({2: (1, 6)}, idle=2**30)

    assert np.isfinite(logits).all()
    np.testing.assert_array_equal(expert_ids[[0, 1, 3]], -1)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(pool.cache), strict=True):
        changed = [page for page in range(MANY) if not np.array_equal(old[page], new[page])]
        assert changed == pool.pages[2]


@pytest.mark.parametrize("size", ["tiny_moe", "tiny_glm"])
def test_the_experts_of_prefill_and_decode_are_those_of_the_full_forward(size):
    tokens = _tokens(1, seed=5)[0]
    pool = paged_lab.Pool(size)
    ids = pool.prefill((1, tokens[:8], 0), (1, tokens[8:13], 8))
    ids += [pool.decode({1: (tokens[t], t)})[1][[1]] for t in range(13, 24)]
    ids = np.concatenate(ids)
    policy, params = pool.policy, lab.params_of(size)
    rows = [np.stack([row] * 2) for row in (tokens, np.arange(24), np.ones(24, int))]
    run = jax.jit(policy.hidden)

    replayed = run(params, *rows, jnp.stack([ids] * 2).astype(jnp.int16))

    assert ids.shape == (24, 2, 2)
    np.testing.assert_array_equal(replayed, run(params, *rows, jnp.full((2, 24, 2, 2), -1)))
    turned = np.stack([ids] * 2)
    turned[0, 20] = (turned[0, 20] + 1) % 4
    moved = np.abs(run(params, *rows, turned) - replayed).max(axis=-1)
    np.testing.assert_array_equal(np.flatnonzero(moved[0]), np.arange(20, 24))
    assert not moved[1].any()
