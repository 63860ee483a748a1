"""Reductions: worked numbers, and the same loss and gradient for every split of the batch."""

import functools

import jax
import numpy as np
import pytest

from jaxrl_single.objectives import value
from jaxrl_single.ops import reduce

# Two trajectories, x = [1, 3] and y = [2, 2, 5, 7], with NaN on the tokens that do not count.
PER_TOKEN = np.array([1.0, 3.0, np.nan, 2.0, 2.0, 5.0, 7.0, np.inf], np.float32)
MASK = np.array([1, 1, 0, 1, 1, 1, 1, 0], bool)
LENGTHS = np.array([2, 2, 2, 4, 4, 4, 4, np.nan], np.float32)
# token_mean 20 / 6; sequence_mean (2 + 4) / 2; sequence_sum (4 + 16) / 2; 20 / (2 x 8)
GOLDEN = {
    "token_mean": 10.0 / 3.0,
    "sequence_mean": 3.0,
    "sequence_sum": 10.0,
    "fixed_length": 1.25,
}
GOLDEN_GRADIENT = {
    "token_mean": [1 / 6, 1 / 6, 0, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 0],
    "sequence_mean": [1 / 4, 1 / 4, 0, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 0],
    "sequence_sum": [1 / 2, 1 / 2, 0, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 0],
    "fixed_length": [1 / 16, 1 / 16, 0, 1 / 16, 1 / 16, 1 / 16, 1 / 16, 0],
}


@functools.partial(jax.jit, static_argnums=0)
def reduced(name, per_token, mask, lengths, num_tokens, num_trajectories):
    denominator = reduce.denominator(
        name, num_tokens=num_tokens, num_trajectories=num_trajectories, fixed_length=8
    )
    return reduce.REDUCTIONS[name](
        per_token, mask, trajectory_lengths=lengths, denominator=denominator
    )


def test_golden_covers_every_reduction():
    assert set(GOLDEN) == set(GOLDEN_GRADIENT) == set(reduce.REDUCTIONS)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_value_and_gradient(name):
    def loss(per_token):
        return reduced(name, per_token, MASK, LENGTHS, 6, 2)

    got, gradient = jax.jit(jax.value_and_grad(loss))(PER_TOKEN)
    np.testing.assert_allclose(got, GOLDEN[name], rtol=1e-6)
    np.testing.assert_allclose(gradient, GOLDEN_GRADIENT[name], rtol=1e-6)


@pytest.mark.parametrize("name", GOLDEN)
def test_nan_under_the_mask_is_harmless_and_on_a_token_surfaces(name):
    per_token = np.array([1.0, np.nan, 3.0], np.float32)
    mask, ones = np.array([True, False, True]), np.ones(3, np.float32)
    value_and_gradient = jax.value_and_grad(reduced, argnums=1)
    got, gradient = value_and_gradient(name, per_token, mask, ones, 1, 1)
    scale = 1 / 8 if name == "fixed_length" else 1.0
    assert got == 4.0 * scale
    np.testing.assert_array_equal(gradient, [scale, 0.0, scale])
    assert np.isnan(reduced(name, per_token, np.ones(3, bool), ones, 1, 1))


@pytest.mark.parametrize("name", GOLDEN)
def test_nothing_to_train_gives_zero_loss_and_gradient(name):
    per_token = np.array([1.0, np.nan, 2.0], np.float32)
    got, gradient = jax.value_and_grad(reduced, argnums=1)(
        name, per_token, np.zeros(3, bool), np.zeros(3, np.float32), 0, 0
    )
    assert got == 0.0
    np.testing.assert_array_equal(gradient, np.zeros(3))


@pytest.mark.parametrize("split", [[[0, 1]], [[0], [1]], [[1], [0], []]])
def test_token_mean_of_unequal_trajectories_in_any_split(split):
    """A: one trained token with loss 4; B: three with loss 0 and six tool tokens: always 1."""
    loss = [np.array([4.0] + [9.0] * 8), np.zeros(9)]
    mask = [np.arange(9) < 1, np.arange(9) < 3]
    total = 0.0
    for micro_batch in split:
        per_token = np.stack([loss[i] for i in micro_batch] or [np.full(9, np.nan)])
        masks = np.stack([mask[i] for i in micro_batch] or [np.zeros(9, bool)])
        total += reduced("token_mean", per_token, masks, np.ones(per_token.shape), 4, 2)
    np.testing.assert_allclose(total, 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("size", [1, 2])
def test_critic_gradient_does_not_depend_on_micro_batches(name, size):
    """Trajectories with 1, 3, 5 and 7 trained tokens as 4 x 1, 2 x 2 and 1 x 4."""
    counts = np.array([1, 3, 5, 7])
    mask = np.arange(8)[None, :] < counts[:, None]
    lengths = np.broadcast_to(counts[:, None], mask.shape)
    rng = np.random.default_rng(0)
    features, returns = rng.normal(size=(2, 4, 8)).astype(np.float32)

    @jax.jit
    @jax.grad
    def gradient(weight, arrays):
        features, returns, mask, lengths = arrays
        per_token = value.value_loss(weight * features, returns, mask)
        return reduced(name, per_token, mask, lengths, 16, 4)

    arrays = (features, returns, mask, lengths)
    whole = gradient(0.7, arrays)
    parts = sum(
        gradient(0.7, [x[start : start + size] for x in arrays]) for start in range(0, 4, size)
    )
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


def test_sequence_mean_of_a_split_trajectory_uses_its_whole_length():
    """A trajectory whose rows lie in two micro-batches still weighs 1 / number of trajectories."""
    x, lengths = np.array([1.0, 2.0, 6.0]), np.full(3, 3.0)
    mask = np.ones(3, bool)
    parts = [
        reduced("sequence_mean", x[i], mask[i], lengths[i], 3, 1)
        for i in (slice(0, 1), slice(1, 3))
    ]
    np.testing.assert_allclose(sum(parts), 3.0, rtol=1e-6)


def test_denominator_counts():
    sizes = {"num_tokens": 6, "num_trajectories": 2, "fixed_length": 8}
    got = {name: float(reduce.denominator(name, **sizes)) for name in reduce.REDUCTIONS}
    assert got == {
        "token_mean": 6.0,
        "sequence_mean": 2.0,
        "sequence_sum": 2.0,
        "fixed_length": 16.0,
    }


def test_denominator_names_the_choices():
    with pytest.raises(ValueError, match=r"unknown reduction 'mean'.*fixed_length.*token_mean"):
        reduce.denominator("mean", num_tokens=1, num_trajectories=1)
    with pytest.raises(ValueError, match="needs fixed_length > 0"):
        reduce.denominator("fixed_length", num_tokens=1, num_trajectories=1)
