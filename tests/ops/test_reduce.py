"""Reductions: worked numbers, and the same loss and gradient for every split of the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import value
from jaxrl_single.ops import reduce

# Two trajectories, x = [1, 3] and y = [2, 2, 5, 7], with NaN on the tokens that do not count.
PER_TOKEN = jnp.array([1.0, 3.0, jnp.nan, 2.0, 2.0, 5.0, 7.0, jnp.inf])
MASK = jnp.array([1, 1, 0, 1, 1, 1, 1, 0], bool)
LENGTHS = jnp.array([2, 2, 2, 4, 4, 4, 4, jnp.nan])
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
    per_token = jnp.array([1.0, jnp.nan, 3.0])
    ones = jnp.ones(3)
    mask = jnp.array([True, False, True])
    unit = {"trajectory_lengths": ones, "denominator": jnp.array(1.0)}
    got, gradient = jax.value_and_grad(reduce.REDUCTIONS[name])(per_token, mask, **unit)
    assert got == 4.0
    np.testing.assert_array_equal(gradient, [1.0, 0.0, 1.0])
    assert jnp.isnan(reduce.REDUCTIONS[name](per_token, jnp.ones(3, bool), **unit))


@pytest.mark.parametrize("name", GOLDEN)
def test_nothing_to_train_gives_zero_loss_and_gradient(name):
    mask = jnp.zeros(3, bool)

    def loss(per_token):
        return reduced(name, per_token, mask, jnp.zeros(3), 0, 0)

    got, gradient = jax.value_and_grad(loss)(jnp.array([1.0, jnp.nan, 2.0]))
    assert got == 0.0
    np.testing.assert_array_equal(gradient, np.zeros(3))


@pytest.mark.parametrize("split", [[[0, 1]], [[0], [1]], [[1], [0], []]])
def test_token_mean_of_unequal_trajectories_in_any_split(split):
    """A: one trained token with loss 4; B: three with loss 0 and six tool tokens: always 1."""
    loss = [jnp.array([4.0] + [9.0] * 8), jnp.zeros(9)]
    mask = [jnp.arange(9) < 1, jnp.arange(9) < 3]
    total = 0.0
    for micro_batch in split:
        per_token = jnp.stack([loss[i] for i in micro_batch] or [jnp.full(9, jnp.nan)])
        masks = jnp.stack([mask[i] for i in micro_batch] or [jnp.zeros(9, bool)])
        total += reduced("token_mean", per_token, masks, jnp.ones(per_token.shape), 4, 2)
    np.testing.assert_allclose(total, 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("size", [1, 2])
def test_critic_gradient_does_not_depend_on_micro_batches(name, size):
    """Trajectories with 1, 3, 5 and 7 trained tokens as 4 x 1, 2 x 2 and 1 x 4."""
    counts = jnp.array([1, 3, 5, 7])
    mask = jnp.arange(8)[None, :] < counts[:, None]
    lengths = jnp.broadcast_to(counts[:, None], mask.shape)
    rng = np.random.default_rng(0)
    features, returns = (jnp.array(rng.normal(size=(4, 8)), jnp.float32) for _ in range(2))

    def loss(weight, rows):
        per_token = value.value_loss(weight * features[rows], returns[rows], mask[rows])
        return reduced(name, per_token, mask[rows], lengths[rows], 16, 4)

    gradient = jax.jit(jax.grad(loss))
    whole = gradient(0.7, jnp.arange(4))
    parts = sum(gradient(0.7, jnp.arange(start, start + size)) for start in range(0, 4, size))
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


def test_sequence_mean_of_a_split_trajectory_uses_its_whole_length():
    """A trajectory whose rows lie in two micro-batches still weighs 1 / number of trajectories."""
    x, lengths = jnp.array([1.0, 2.0, 6.0]), jnp.full(3, 3.0)
    mask = jnp.ones(3, bool)
    parts = [
        reduced("sequence_mean", x[i], mask[i], lengths[i], 3, 1)
        for i in (slice(0, 1), slice(1, 3))
    ]
    np.testing.assert_allclose(sum(parts), 3.0, rtol=1e-6)


def test_denominator_counts():
    sizes = {"num_tokens": jnp.array(6), "num_trajectories": jnp.array(2), "fixed_length": 8}
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
