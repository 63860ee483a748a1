"""The experts of a layer in the sampler: the numbers of a token do not depend on other tokens.

Elsewhere than on CPU, every expert on every token: a decode step reads the weights of all experts
anyway, and reading them is what it waits for. XLA:CPU is slower at arithmetic than at memory;
there, tokens are sorted by expert, and each expert takes its share in blocks of a fixed size, as
many as it needs. A token's place in a block varies with its company, but not what is computed for
it: the dots of a block have one shape, and a token is a column in them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_single.models import matmul, platform

_MOST_COLUMNS = 64  # of a block


class _Plan(NamedTuple):
    """The A = T k assignments of tokens to experts, sorted by expert.

    Attributes:
      tokens: [A + width] int, the token of each; what follows A fills the last block.
      places: [A] int, where each assignment stands among the sorted ones.
      starts: [E] int, where those of each expert start.
      ends: [E] int, blocks of this expert and those before it.
    """

    tokens: jax.Array
    places: jax.Array
    starts: jax.Array
    ends: jax.Array


def apply(
    x: jax.Array,
    real: jax.Array,
    mixing: jax.Array,
    chosen: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    """The mixture of E gated MLPs.

    Args:
      x: [D, T].
      real: [T] bool; the other tokens get finite numbers without meaning.
      mixing: [T, E], weights of the chosen experts, else 0.
      chosen: [T, k] int.
      gate_up: [E, 2 F, D].
      down: [E, D, F].

    Returns:
      [D, T].
    """
    if platform.on_cpu():
        return _in_blocks(x, real, mixing, chosen, gate_up, down)
    gate, up = jnp.split(jnp.einsum("efd,dt->eft", gate_up, x), 2, axis=1)
    hidden = matmul.swiglu(gate, up) * mixing.T[:, None].astype(x.dtype)
    return jnp.einsum("edf,eft->dt", down, hidden)


def _in_blocks(
    x: jax.Array,
    real: jax.Array,
    mixing: jax.Array,
    chosen: jax.Array,
    gate_up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    num_experts = mixing.shape[1]
    # A quarter more than an expert's mean share, up to a multiple of 8: most need one block.
    width = min(-(-5 * chosen.size // (32 * num_experts)) * 8, _MOST_COLUMNS)
    plan = _plan(chosen, real, num_experts, width)
    rows = platform.separate(x.T)

    def compute_block(block: jax.Array, results: jax.Array) -> jax.Array:
        expert = (block >= plan.ends).sum()
        blocks_before = jnp.where(expert > 0, plan.ends[expert - 1], 0)
        place = plan.starts[expert] + (block - blocks_before) * width
        tokens = jax.lax.dynamic_slice(plan.tokens, (place,), (width,))
        inputs, kernel, out = platform.separate((rows[tokens], gate_up[expert], down[expert]))
        gate, up = jnp.split(platform.separate(jnp.einsum("fd,td->ft", kernel, inputs)), 2)
        hidden = platform.separate(matmul.swiglu(gate, up))
        # Finished before it is turned, or XLA would turn the operands of the dot instead.
        block_results = platform.separate(out @ hidden)
        # What a block holds beyond its expert's share, the blocks of the next ones overwrite.
        return jax.lax.dynamic_update_slice(results, block_results.T, (place, 0))

    results = jnp.zeros((chosen.size + width, x.shape[0]), x.dtype)
    results = jax.lax.fori_loop(0, plan.ends[-1], compute_block, results)
    weights = jnp.take_along_axis(mixing, chosen, axis=1).astype(x.dtype)
    results = results[plan.places].reshape(*chosen.shape, -1) * weights[:, :, None]
    return results.sum(axis=1).T


def _plan(chosen: jax.Array, real: jax.Array, num_experts: int, width: int) -> _Plan:
    # Tokens that are not real go to an expert behind the last one, which takes no time.
    experts = jnp.where(real[:, None], chosen, num_experts).reshape(-1)
    shares = (experts[:, None] == jnp.arange(num_experts)[None, :]).sum(axis=0, dtype=jnp.int32)
    order = jnp.argsort(experts, stable=True)
    return _Plan(
        tokens=jnp.pad(order // chosen.shape[1], (0, width)),
        places=jnp.argsort(order),
        starts=jnp.cumsum(shares) - shares,
        ends=jnp.cumsum(-(-shares // width)),
    )
