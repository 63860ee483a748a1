"""The rule that keeps everything."""

import jax.numpy as jnp
import numpy as np

from jaxrl_single.keep_rules import none


def test_keeps_every_action_whatever_the_ratio():
    log_ratio = jnp.array([[0.0, 50.0], [jnp.nan, -jnp.inf]])
    mask = jnp.array([[True, True], [False, True]])
    keep = none.none(log_ratio, mask)
    np.testing.assert_array_equal(keep, [[1.0, 1.0], [0.0, 1.0]])
    assert keep.dtype == jnp.float32
