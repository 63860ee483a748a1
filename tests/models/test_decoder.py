"""Packed rows: against numpy, causality, isolation of segments, garbage under the padding."""

import jax
import jax.numpy as jnp
import model_lab as lab
import numpy as np
import numpy_decoder
import pytest

SEGMENTS = ((9, 12), (17,))  # row 0: two segments and padding; row 1: one and padding


@pytest.mark.parametrize("size", lab.FORMS)
def test_each_packed_segment_equals_the_numpy_decoder_alone(size):
    policy, params = lab.policy_of(size), lab.params_of(size)
    tokens, positions, segment_ids = lab.packed_rows(SEGMENTS)

    hidden = lab.hidden_program(policy)(params, tokens, positions, segment_ids)

    for b, lengths in enumerate(SEGMENTS):
        for segment in range(1, len(lengths) + 1):
            here = segment_ids[b] == segment
            expected = numpy_decoder.hidden(params, policy.config, tokens[b, here])
            # float32 against float64 through two layers; the values have size 1.
            np.testing.assert_allclose(hidden[b][here], expected, atol=2e-5)


@pytest.mark.parametrize("size", lab.SIZES)
def test_a_token_is_moved_by_its_own_segment_up_to_itself_and_by_nothing_else(size):
    policy, params = lab.policy_of(size), lab.params_of(size)
    tokens, positions, segment_ids = lab.packed_rows(SEGMENTS)
    tokens = np.stack([np.arange(lab.LENGTH), np.full(lab.LENGTH, 39)]).astype(np.int32)
    at = 14  # the sixth token of the second segment of row 0
    cotangent = jnp.zeros((lab.ROWS, lab.LENGTH, 64)).at[0, at].set(jnp.linspace(-1, 1, 64))

    slope = lab.gradient_program(policy)(params, (tokens, positions, segment_ids), cotangent)

    # Every place of row 0 holds its own token, so rows of the table tell the places apart.
    moved = np.flatnonzero(np.abs(slope["embedding"]["table"]).sum(axis=1))
    np.testing.assert_array_equal(moved, np.arange(9, at + 1))


@pytest.mark.parametrize("size", [*lab.SIZES, pytest.param("tiny_glm", marks=pytest.mark.long)])
def test_garbage_under_the_padding_changes_nothing_to_the_bit(size):
    policy, params = lab.policy_of(size), lab.params_of(size)
    tokens, positions, segment_ids = lab.packed_rows(SEGMENTS)
    padding = segment_ids == 0
    garbage = np.random.default_rng(2).integers(-(2**31), 2**31 - 1, (2, *tokens.shape))
    dirty = (
        np.where(padding, garbage[0], tokens).astype(np.int32),
        np.where(padding, garbage[1], positions).astype(np.int32),
        segment_ids,
    )
    cotangent = np.random.default_rng(3).normal(size=(*tokens.shape, 64)).astype(np.float32)
    cotangent = np.where(padding[..., None], 0, cotangent)
    hidden, gradient = lab.hidden_program(policy), lab.gradient_program(policy)

    np.testing.assert_array_equal(
        hidden(params, *dirty), hidden(params, tokens, positions, segment_ids)
    )
    assert np.isfinite(hidden(params, *dirty)).all()
    lab.assert_trees_equal(
        gradient(params, dirty, cotangent),
        gradient(params, (tokens, positions, segment_ids), cotangent),
    )


def test_a_segment_is_the_same_wherever_it_is_packed():
    policy, params = lab.policy_of("tiny_moe"), lab.params_of("tiny_moe")
    rows = lab.packed_rows(((7, 12), (5, 10)))
    moved = [np.zeros_like(array) for array in rows]
    for source, target in zip(rows, moved, strict=True):
        target[1, 2:14] = source[0, 7:19]  # the second segment of row 0, into row 1
    hidden = lab.hidden_program(policy)

    np.testing.assert_allclose(
        hidden(params, *moved)[1, 2:14], hidden(params, *rows)[0, 7:19], atol=2e-5
    )


def test_remat_recomputes_the_layers_and_keeps_the_gradient():
    plain, remat = lab.policy_of("tiny"), lab.policy_of("tiny", remat=True)
    params, rows = lab.params_of("tiny"), lab.packed_rows(SEGMENTS)
    cotangent = np.random.default_rng(3).normal(size=(*rows[0].shape, 64)).astype(np.float32)

    recomputed = lab.gradient_program(remat)(params, rows, cotangent)

    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4),
        recomputed,
        lab.gradient_program(plain)(params, rows, cotangent),
    )
    kept = [
        sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(_pullback(policy, rows), params)))
        for policy in (remat, plain)
    ]
    assert kept[0] < kept[1] / 2


def _pullback(policy, rows):
    return lambda params: jax.vjp(lambda params: policy.hidden(params, *rows), params)[1]


@pytest.mark.parametrize("size", lab.SIZES)
def test_bfloat16_is_near_float32(size):
    exact, rough = lab.policy_of(size), lab.policy_of(size, dtype="bfloat16")
    params, rows = lab.params_of(size), lab.packed_rows(SEGMENTS)
    real = rows[2] > 0

    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    hidden = lab.hidden_program(rough)(narrow, *rows)
    difference = np.asarray(hidden, np.float32) - lab.hidden_program(exact)(params, *rows)

    assert hidden.dtype == jnp.bfloat16
    # 8 bits of mantissa; a near tie in the router may send a token elsewhere, so no maximum.
    assert np.sqrt((difference[real] ** 2).mean()) < 0.1
