"""Prefill and decode against the full forward; slots do not disturb one another."""

import functools

import jax
import jax.numpy as jnp
import model_lab as lab
import numpy as np
import pytest

SLOTS, CACHE_LENGTH, WIDTH = 4, 24, 6


@functools.cache
def _programs(size):
    policy = lab.policy_of(size)
    return jax.jit(policy.prefill), jax.jit(policy.decode)


def _logits(size, tokens):
    """Full forward over one segment per row, [ROWS, LENGTH, V]."""
    policy, params = lab.policy_of(size), lab.params_of(size)
    positions = np.broadcast_to(np.arange(lab.LENGTH, dtype=np.int32), tokens.shape)
    hidden = lab.hidden_program(policy)(params, tokens, positions, np.ones_like(tokens))
    return np.asarray(hidden @ policy.unembedding(params).T)


def _prefill(size, cache, rows):
    """rows: (slot, tokens, start), at most two."""
    slots, starts, lengths = (
        np.full(2, 99, np.int32),
        np.full(2, -7, np.int32),
        np.zeros(2, np.int32),
    )
    tokens = np.full((2, WIDTH), -12345, np.int32)
    for r, (slot, row, start) in enumerate(rows):
        slots[r], starts[r], lengths[r] = slot, start, len(row)
        tokens[r, : len(row)] = row
    return _programs(size)[0](lab.params_of(size), cache, slots, tokens, starts, lengths)


def _decode(size, cache, entries, *, idle=0):
    """entries: slot -> (token, position)."""
    tokens, positions = np.full((2, SLOTS), idle, np.int32)
    active = np.zeros(SLOTS, bool)
    for slot, (token, position) in entries.items():
        tokens[slot], positions[slot], active[slot] = token, position, True
    return _programs(size)[1](lab.params_of(size), cache, tokens, positions, active)


def _compare(actual, expected):
    np.testing.assert_allclose(jax.nn.log_softmax(actual), jax.nn.log_softmax(expected), atol=2e-5)


@pytest.mark.parametrize("size", lab.SIZES)
def test_an_episode_of_two_turns_scores_as_the_full_forward_does(size):
    tokens = np.random.default_rng(0).integers(0, lab.VOCAB_SIZE, (2, 24)).astype(np.int32)
    full = _logits(size, tokens)
    cache = lab.policy_of(size).init_cache(SLOTS, CACHE_LENGTH)
    slot_of = {0: 3, 1: 1}

    # Prompts of 8 and 5 tokens; all but the last are prefilled, the longer one in two pieces.
    cache = _prefill(size, cache, [(3, tokens[0, :6], 0), (1, tokens[1, :4], 0)])
    cache = _prefill(size, cache, [(3, tokens[0, 6:7], 6)])
    for step in range(4):
        at = {0: 7 + step, 1: 4 + step}
        entries = {slot_of[row]: (tokens[row, t], t) for row, t in at.items()}
        logits, cache = _decode(size, cache, entries)
        for row, t in at.items():
            _compare(logits[slot_of[row]], full[row, t])
    # An observation of 6 tokens follows in each, in the other order; row 0 then runs to the end.
    cache = _prefill(size, cache, [(1, tokens[1, 8:13], 8), (3, tokens[0, 11:16], 11)])
    for t in range(16, 24):
        entries = {3: (tokens[0, t], t)} | ({1: (tokens[1, 13], 13)} if t == 16 else {})
        logits, cache = _decode(size, cache, entries)
        _compare(logits[3], full[0, t])
        if t == 16:
            _compare(logits[1], full[1, 13])


@pytest.mark.parametrize("size", lab.SIZES)
def test_the_last_piece_of_a_prefill_may_end_with_the_cache(size):
    tokens = np.random.default_rng(1).integers(0, lab.VOCAB_SIZE, (2, 24)).astype(np.int32)
    cache = lab.policy_of(size).init_cache(SLOTS, CACHE_LENGTH)

    for start in (0, 6, 12, 18, 21):  # the last window reaches behind the cache
        end = min(start + 6 if start < 18 else start + 3, 23)
        cache = _prefill(size, cache, [(2, tokens[0, start:end], start)])
    logits, _ = _decode(size, cache, {2: (tokens[0, 23], 23)})

    _compare(logits[2], _logits(size, tokens)[0, 23])


@pytest.mark.parametrize("size", lab.SIZES)
def test_a_slot_is_the_same_to_the_bit_whatever_the_others_do(size):
    tokens = np.random.default_rng(2).integers(0, lab.VOCAB_SIZE, (3, 6)).astype(np.int32)
    empty = lab.policy_of(size).init_cache(SLOTS, CACHE_LENGTH)
    alone = _prefill(size, empty, [(1, tokens[0], 0)])
    crowded = _prefill(size, empty, [(0, tokens[1], 0), (3, tokens[2], 0)])
    crowded = _prefill(size, crowded, [(2, tokens[2, :4], 0), (1, tokens[0], 0)])

    for step in range(3):
        mine = {1: (5 + step, 6 + step)}
        others = {0: (7, 6 + step), 2: (8, 4 + step), 3: (9, 6 + step)}
        alone_logits, alone = _decode(size, alone, mine)
        crowded_logits, crowded = _decode(size, crowded, mine | others)
        np.testing.assert_array_equal(alone_logits[1], crowded_logits[1])


def test_idle_slots_and_empty_rows_leave_the_cache_untouched():
    tokens = np.random.default_rng(3).integers(0, lab.VOCAB_SIZE, (2, 6)).astype(np.int32)
    cache = lab.policy_of("tiny").init_cache(SLOTS, CACHE_LENGTH)
    cache = _prefill("tiny", cache, [(0, tokens[0], 0), (2, tokens[1], 0)])

    lab.assert_trees_equal(_prefill("tiny", cache, []), cache)
    logits, after = _decode("tiny", cache, {2: (1, 6)}, idle=2**30)

    assert np.isfinite(logits).all()
    for old, new in zip(jax.tree.leaves(cache), jax.tree.leaves(after), strict=True):
        changed = [s for s in range(SLOTS) if not np.array_equal(old[s], new[s])]
        assert changed == [2]


def test_a_prefill_wider_than_the_cache_is_refused():
    policy = lab.policy_of("tiny")
    rows = (jnp.zeros((1,), int), jnp.zeros((1, 9), int), jnp.zeros((1,), int), jnp.ones((1,), int))

    with pytest.raises(ValueError, match=r"prefill of 9 tokens .* cache of 8"):
        policy.prefill(lab.params_of("tiny"), policy.init_cache(1, 8), *rows)
