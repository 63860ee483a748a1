"""What a chunk writes down of each distribution besides the token that was drawn from it.

All of it comes from one row of log-probs: of all tokens at the temperature, before anything that
restricts the draw. A field that `types.Record` does not ask for does not exist, and costs nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_single import types
from jaxrl_single.sampler import inversion

# Folded into a token's key, whose own uniform draws the token: no other fold uses so deep a key.
AUX = 0x617578  # "aux"

Rows = dict[str, jax.Array]  # by the names of types.ACTION_FIELDS


def empty(record: types.Record, num_slots: int, vocab_size: int) -> Rows:
    """Zeros in the place of `rows`, [S, width]."""
    return {
        name: jnp.zeros((num_slots, width), types.ACTION_FIELDS[name])
        for name, width in record.widths(vocab_size).items()
    }


def uniforms(record: types.Record, token_keys: jax.Array) -> jax.Array:
    """Of the auxiliary draws: keys [...] of the tokens give [..., M] in [0, 1)."""

    def of_token(key: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(key, AUX), (record.num_aux,))

    for _ in range(token_keys.ndim):
        of_token = jax.vmap(of_token)
    # Partitionable bits cost twice as much, and the numbers of one token stay on one device.
    with jax.threefry_partitionable(False):
        return of_token(token_keys)


def rows(record: types.Record, logprobs: jax.Array, uniforms: jax.Array) -> Rows:
    """The fields that `record` asks for, [S, width].

    Args:
      logprobs: [S, V], of the full distributions.
      uniforms: [S, M], of the auxiliary draws.
    """
    found: Rows = {}
    if record.num_aux:
        found["aux_tokens"] = inversion.invert_each(jnp.exp(logprobs), uniforms)
        found["aux_logprobs"] = jnp.take_along_axis(logprobs, found["aux_tokens"], axis=-1)
    if record.topk:
        found["topk_logprobs"], found["topk_tokens"] = jax.lax.top_k(logprobs, record.topk)
    if record.full:
        found["full_logprobs"] = logprobs
    return found
