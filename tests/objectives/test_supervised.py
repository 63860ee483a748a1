"""Negative log-likelihood of demonstrations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import supervised


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_golden_value_and_gradient(garbage):
    logprobs, mask = jnp.array([-0.5, garbage, -2.0]), jnp.array([True, False, True])

    def total(logprobs):
        return jnp.sum(supervised.negative_log_likelihood(logprobs, mask))

    loss, gradient = jax.value_and_grad(total)(logprobs)
    assert loss == 2.5
    np.testing.assert_array_equal(gradient, [-1.0, 0.0, -1.0])
