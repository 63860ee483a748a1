"""The KL budget of a step: worked numbers, the true divergence, parts of a batch, guards."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import kl_budget

TEMPERATURE = np.array([1.0, 0.7, 2.0])
position_kl, predicted_kl = jax.jit(kl_budget.position_kl), jax.jit(kl_budget.predicted_kl)


def log_softmax(logits):
    return np.float32(logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True)))


def test_golden_position():
    """p = 1/2, 1/4, 1/4 and change 1, 2, 4: variance 1/2 + 1 + 4 - 2^2 = 3/2, halved; tau 2."""
    logprobs, change = jnp.log(jnp.array([[0.5, 0.25, 0.25]] * 2)), jnp.array([[1.0, 2.0, 4.0]] * 2)
    got = position_kl(logprobs, change, jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(got, [0.75, 0.75 / 4], rtol=1e-6)


@pytest.mark.parametrize(
    ("predicted", "max_scale", "expected"),
    [
        (0.004, 1.0, 0.5),
        (0.00025, 1.0, 1.0),
        (0.00025, 4.0, 2.0),
        (0.0, 1.0, 0.0),
        (-1e-9, 1.0, 0.0),
        (np.nan, 1.0, 0.0),
        (np.inf, 1.0, 0.0),
    ],
)
def test_golden_scale(predicted, max_scale, expected):
    got = kl_budget.step_scale(jnp.asarray(predicted), budget=1e-3, max_scale=max_scale)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def policy_and_step():
    rng = np.random.default_rng(3)
    params = {"w": rng.normal(size=(5, 4)), "b": rng.normal(size=5)}
    step = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
    hidden = rng.normal(size=(3, 4))
    return (lambda p: jnp.tanh(hidden @ p["w"].T) + jnp.broadcast_to(p["b"], (3, 5))), params, step


def true_kl(logits_of, params, step):
    """Mean over positions of KL(before || after), by its definition."""
    before, after = (
        jax.nn.log_softmax(logits_of(p) / TEMPERATURE[:, None])
        for p in (params, jax.tree.map(jnp.add, params, step))
    )
    return jnp.mean(jnp.sum(jnp.exp(before) * (before - after), axis=-1))


def predict(logits_of, params, step):
    logits, change = jax.jvp(logits_of, (params,), (step,))
    logprobs = jax.nn.log_softmax(logits / TEMPERATURE[:, None])
    return kl_budget.predicted_kl(logprobs, change, jnp.asarray(TEMPERATURE), jnp.ones(3, bool))


def test_a_scaled_step_spends_the_budget():
    """To third order in the step: the error of the prediction falls with its length."""
    logits_of, params, step = policy_and_step()

    @functools.partial(jax.jit, static_argnames="budget")
    def spent(params, step, budget):
        predicted = predict(logits_of, params, step)
        scale = kl_budget.step_scale(predicted, budget=budget, max_scale=1.0)
        return true_kl(logits_of, params, kl_budget.scaled_step(step, scale))

    with jax.enable_x64(True):
        errors = [abs(float(spent(params, step, b)) / b - 1.0) for b in (1e-6, 1e-8)]
    assert errors[0] < 0.01
    np.testing.assert_allclose(errors[0] / errors[1], 10.0, rtol=0.05)  # sqrt of 1e-6 / 1e-8


def test_the_parts_of_a_batch_add_up():
    rng = np.random.default_rng(0)
    logprobs = log_softmax(rng.normal(size=(2, 6, 5)))
    change = np.float32(rng.normal(size=(2, 6, 5)))
    mask, temperature = rng.random((2, 6)) < 0.6, np.ones((2, 6), np.float32)
    whole = predicted_kl(logprobs, change, temperature, mask)
    size = np.sum(mask)
    parts = [
        predicted_kl(*arrays, denominator=size)
        for arrays in zip(logprobs, change, temperature, mask, strict=True)
    ]
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-6)


def test_adding_a_constant_to_all_logits_costs_nothing():
    logprobs = log_softmax(np.array([[3.0, -1.0, 0.5]]))
    change = jnp.full((1, 3), 100.0)
    np.testing.assert_allclose(position_kl(logprobs, change, jnp.ones(1)), 0, atol=1e-8)


def test_forbidden_tokens_are_not_looked_at():
    logprobs = jnp.log(jnp.array([[0.5, 0.5, 0.0]]))
    change = jnp.array([[1.0, 3.0, np.nan]])
    np.testing.assert_allclose(position_kl(logprobs, change, jnp.ones(1)), 0.5)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 3e38])
def test_garbage_under_the_mask_is_bit_identical(garbage):
    logprobs = log_softmax(np.array([[1.0, 2.0], [0.3, 0.1]]))
    change, temperature = np.array([[0.3, -0.2], [1.0, 0.0]], np.float32), np.float32([1.0, 1.0])
    mask = np.array([True, False])
    clean = predicted_kl(logprobs, change, temperature, mask)
    logprobs[1], change[1], temperature[1] = garbage, garbage, 0.0
    np.testing.assert_array_equal(predicted_kl(logprobs, change, temperature, mask), clean)
    assert predicted_kl(logprobs, change, temperature, np.zeros(2, bool)) == 0.0


def test_nan_on_a_counted_position_surfaces_and_stops_the_step():
    logprobs = jnp.array([[np.nan, -0.7]])
    predicted = predicted_kl(logprobs, jnp.ones((1, 2)), jnp.ones(1), jnp.ones(1, bool))
    assert jnp.isnan(predicted)
    scale = kl_budget.step_scale(predicted, budget=1.0, max_scale=1.0)
    step = kl_budget.scaled_step({"w": jnp.array([np.nan, 1.0], jnp.bfloat16)}, scale)
    np.testing.assert_array_equal(step["w"], np.zeros(2))
    assert step["w"].dtype == jnp.bfloat16
