"""The counter of compilations counts new programs and nothing else."""

import jax
import jax.numpy as jnp

from jaxrl_single.trainer import compilations


def test_a_new_shape_counts_and_a_known_one_does_not():
    counter = compilations.CompilationCounter()
    double = jax.jit(lambda x: 2 * x + 1)
    arrays = [jnp.zeros(17), jnp.ones(17), jnp.zeros(19)]
    before = counter.count
    double(arrays[0]).block_until_ready()
    assert counter.count == before + 1
    double(arrays[1]).block_until_ready()
    assert counter.count == before + 1
    double(arrays[2]).block_until_ready()
    assert counter.count == before + 2
    assert counter.seconds > 0
