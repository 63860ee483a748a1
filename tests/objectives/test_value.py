"""The critic's loss: no factor one half, targets stopped, garbage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import value

MASK = jnp.array([True, False, True])


@pytest.mark.parametrize("garbage", [0.0, np.nan, np.inf, -3e38])
def test_golden_value_and_gradient(garbage):
    """(.5 - 1)^2 and (2 - 0)^2; gradient 2 (V - G)."""
    values, returns = jnp.array([0.5, garbage, 2.0]), jnp.array([1.0, garbage, 0.0])

    def total(values, returns):
        per_token = value.value_loss(values, returns, MASK)
        return jnp.sum(per_token), per_token

    gradients, per_token = jax.grad(total, argnums=(0, 1), has_aux=True)(values, returns)
    np.testing.assert_allclose(per_token, [0.25, 0.0, 4.0])
    np.testing.assert_allclose(gradients[0], [-1.0, 0.0, 4.0])
    np.testing.assert_array_equal(gradients[1], np.zeros(3))


def test_nan_on_an_action_surfaces():
    per_token = value.value_loss(jnp.array([jnp.nan]), jnp.zeros(1), jnp.ones(1, bool))
    assert jnp.isnan(per_token[0])


def test_is_float32_for_bfloat16_values():
    low = jnp.ones(3, jnp.bfloat16)
    assert value.value_loss(low, low, MASK).dtype == jnp.float32
