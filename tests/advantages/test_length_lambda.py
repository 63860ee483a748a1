"""Length-adaptive lambda: worked numbers and the clamp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.advantages import length_lambda


@pytest.mark.parametrize(
    ("alpha", "lengths", "expected"),
    [
        (1.5, [1, 2, 10, 100, 1000], [1 / 3, 2 / 3, 14 / 15, 149 / 150, 1499 / 1500]),
        (0.05, [1, 2, 10, 100, 1000], [0.0, 0.0, 0.0, 0.8, 0.98]),  # -1 at 10 without the clamp
    ],
)
def test_golden(alpha, lengths, expected):
    function = jax.jit(lambda x: length_lambda.length_adaptive_lambda(x, alpha=alpha))
    np.testing.assert_allclose(function(jnp.array(lengths)), expected, atol=1e-7)


def test_length_zero_is_finite():
    got = length_lambda.length_adaptive_lambda(jnp.zeros(1), alpha=1.5)
    np.testing.assert_allclose(got, [1 / 3], rtol=1e-6)


def test_grows_with_length_and_stays_under_one():
    got = np.asarray(length_lambda.length_adaptive_lambda(jnp.arange(1, 4000), alpha=1.5))
    assert (np.diff(got) >= 0).all()
    assert (got < 1.0).all()
