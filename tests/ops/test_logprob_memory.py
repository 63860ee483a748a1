"""Memory of the chunked projection at the length and vocabulary of real models."""

import os
import subprocess
import sys

import pytest

# A process of its own, because the peak of a process never falls again.
PROGRAM = """

import jax
import jax.numpy as jnp

from jaxrl_single.ops import logprobs

T, D, V = 2**15, 64, 152_000


def loss(hidden, unembedding, tokens):
    ones = jnp.ones(T, jnp.float32)
    values, entropies = logprobs.token_logprobs(hidden, unembedding, tokens, ones, chunk={chunk})
    return jnp.sum(values) + 0.1 * jnp.sum(entropies)


keys = jax.random.split(jax.random.key(0), 3)
hidden = jax.random.normal(keys[0], (T, D))
unembedding = 0.3 * jax.random.normal(keys[1], (V, D))
tokens = jax.random.randint(keys[2], (T,), 0, V)
value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(hidden, unembedding, tokens)
assert all(bool(jnp.isfinite(x).all()) for x in (value, *gradients))
# At the likeliest tokens there is no such gradient; a mean over many tokens is far from 0.
assert float(jnp.abs(gradients[0]).mean()) > 0.01
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6)
"""
LIMIT_MB = 1500  # whole logits alone: 19 900 MB


@pytest.mark.long
def test_a_long_row_with_a_large_vocabulary_stays_small():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX", "XLA"))}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(chunk=128)],
        env=env | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(result.stdout) < LIMIT_MB
