"""Three ways to compute the same mixture of gated MLPs. No way drops a token.

  dense   every expert on every token; most of the results are mixed with weight 0. One large
          product: the fastest for few experts, and the only form whose numbers for a token do
          not depend on the other tokens, so decode uses it always.
  ragged  tokens sorted by expert, `jax.lax.ragged_dot`; for accelerators and many experts.
  blocks  tokens sorted by expert, each expert's share padded to whole blocks of rows, a batched
          product over blocks; the fastest on CPU for many experts.

The sorted forms move rows by gathers alone, in the gradients too: the gradient of a gather by a
known permutation is the gather by its inverse, where JAX would scatter.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_single.models import matmul, platform

_BLOCK_ROWS = 256


class Kernels(NamedTuple):
    """Weights of E gated MLPs: gate and up [E, D, F], down [E, F, D]."""

    gate: jax.Array
    up: jax.Array
    down: jax.Array


class _Plan(NamedTuple):
    """Where each of the A = T k assignments of a token to an expert is computed.

    Attributes:
      source: [M] int, the assignment computed in each row.
      real: [M] bool, False for rows that only fill a block.
      row: [A] int, the row of each assignment.
    """

    source: jax.Array
    real: jax.Array
    row: jax.Array


def dense(x: jax.Array, mixing: jax.Array, chosen: jax.Array, kernels: Kernels) -> jax.Array:
    """x [T, D], mixing weights [T, E], chosen experts [T, k] -> [T, D]."""
    del chosen
    e, d, f = kernels.gate.shape
    gate, up = (
        matmul.matmul(x, kernel.transpose(1, 0, 2).reshape(d, e * f))
        for kernel in (kernels.gate, kernels.up)
    )
    hidden = matmul.swiglu(gate, up).reshape(-1, e, f) * mixing[:, :, None].astype(x.dtype)
    return matmul.matmul(hidden.reshape(-1, e * f), kernels.down.reshape(e * f, d))


def ragged(x: jax.Array, mixing: jax.Array, chosen: jax.Array, kernels: Kernels) -> jax.Array:
    """As `dense`."""
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    plan = _Plan(source=order, real=jnp.ones(order.shape, bool), row=jnp.argsort(order))
    sizes = _group_sizes(chosen, mixing.shape[1])
    rows = _spread(x, plan)
    gate, up = (jax.lax.ragged_dot(rows, kernel, sizes) for kernel in (kernels.gate, kernels.up))
    rows = jax.lax.ragged_dot(matmul.swiglu(gate, up), kernels.down, sizes)
    return _mix(_collect(rows, plan), mixing, chosen)


def blocks(x: jax.Array, mixing: jax.Array, chosen: jax.Array, kernels: Kernels) -> jax.Array:
    """As `dense`."""
    plan, block_experts = _plan_blocks(chosen, mixing.shape[1])
    rows = _spread(x, plan).reshape(-1, _BLOCK_ROWS, x.shape[-1])
    gate, up = (_block_matmul(rows, kernel, block_experts) for kernel in (kernels.gate, kernels.up))
    rows = _block_matmul(matmul.swiglu(gate, up), kernels.down, block_experts)
    return _mix(_collect(rows.reshape(-1, x.shape[-1]), plan), mixing, chosen)


FORMS = {"dense": dense, "ragged": ragged, "blocks": blocks}


def _group_sizes(chosen: jax.Array, num_experts: int) -> jax.Array:
    """[E] int32: assignments to each expert."""
    return (chosen.reshape(-1, 1) == jnp.arange(num_experts)[None, :]).sum(axis=0, dtype=jnp.int32)


def _plan_blocks(chosen: jax.Array, num_experts: int) -> tuple[_Plan, jax.Array]:
    """The plan, and the expert [number of blocks] of each block; the shapes are static."""
    experts = chosen.reshape(-1)
    sizes = _group_sizes(chosen, num_experts)
    order = jnp.argsort(experts, stable=True)
    num_blocks = experts.size // _BLOCK_ROWS + num_experts
    block_ends = jnp.cumsum(-(-sizes // _BLOCK_ROWS))
    block_experts = (jnp.arange(num_blocks)[:, None] >= block_ends[None, :]).sum(axis=1)
    block_experts = jnp.minimum(block_experts, num_experts - 1)
    # First row of each expert's blocks, minus its first place among the sorted assignments.
    first_rows = jnp.pad(block_ends, (1, 0))[:-1] * _BLOCK_ROWS
    moved = first_rows - (jnp.cumsum(sizes) - sizes)
    row_experts = jnp.repeat(block_experts, _BLOCK_ROWS)
    rows = jnp.arange(num_blocks * _BLOCK_ROWS)
    real = rows < (first_rows + sizes)[row_experts]
    places = jnp.clip(rows - moved[row_experts], 0, experts.size - 1)
    plan = _Plan(source=order[places], real=real, row=jnp.argsort(order) + moved[experts])
    return plan, block_experts


@jax.custom_vjp
def _spread(x: jax.Array, plan: _Plan) -> jax.Array:
    """x [T, D] -> [M, D]: the token of each row's assignment, 0 in filling rows."""
    tokens = plan.source // (plan.row.size // x.shape[0])
    return jnp.where(plan.real[:, None], x[tokens], 0)


def _spread_forward(x: jax.Array, plan: _Plan) -> tuple[jax.Array, tuple[_Plan, int]]:
    return _spread(x, plan), (plan, x.shape[0])


def _spread_backward(residuals: tuple[_Plan, int], gradient: jax.Array) -> tuple[jax.Array, None]:
    plan, num_tokens = residuals
    return gradient[plan.row].reshape(num_tokens, -1, gradient.shape[-1]).sum(axis=1), None


_spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def _collect(rows: jax.Array, plan: _Plan) -> jax.Array:
    """rows [M, D] -> [A, D]: the row of each assignment."""
    return rows[plan.row]


def _collect_forward(rows: jax.Array, plan: _Plan) -> tuple[jax.Array, _Plan]:
    return _collect(rows, plan), plan


def _collect_backward(plan: _Plan, gradient: jax.Array) -> tuple[jax.Array, None]:
    return jnp.where(plan.real[:, None], gradient[plan.source], 0), None


_collect.defvjp(_collect_forward, _collect_backward)


def _mix(results: jax.Array, mixing: jax.Array, chosen: jax.Array) -> jax.Array:
    """results [T k, D] of the chosen experts -> [T, D], weighted."""
    every = jnp.arange(mixing.shape[1])[None, None, :]
    weights = jnp.where(chosen[:, :, None] == every, mixing[:, None, :], 0).sum(axis=-1)
    results = results.reshape(*chosen.shape, -1)
    return (results * weights[:, :, None].astype(results.dtype)).sum(axis=1)


@jax.custom_vjp
def _block_matmul(rows: jax.Array, kernel: jax.Array, block_experts: jax.Array) -> jax.Array:
    """rows [blocks, rows, D] @ kernel [E, D, F] of each block's expert -> [blocks, rows, F]."""
    return jnp.einsum("brd,bdf->brf", rows, kernel[block_experts])


def _block_matmul_forward(
    rows: jax.Array, kernel: jax.Array, block_experts: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return _block_matmul(rows, kernel, block_experts), (rows, kernel, block_experts)


def _block_matmul_backward(
    residuals: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, kernel, block_experts = residuals
    gradient = platform.separate(gradient)
    drows = jnp.einsum("brf,bdf->brd", gradient, kernel[block_experts])
    per_block = jnp.einsum("brd,brf->bdf", rows, gradient)
    owner = jnp.arange(kernel.shape[0])[:, None] == block_experts[None, :]
    return drows, jnp.einsum("eb,bdf->edf", owner.astype(kernel.dtype), per_block), None


_block_matmul.defvjp(_block_matmul_forward, _block_matmul_backward)
