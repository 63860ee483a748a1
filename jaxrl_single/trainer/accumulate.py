"""Gradients summed over micro-batches, and the guarded update that they lead to.

A loss function returns the *share* of its micro-batch: numerator over the global denominator.
Shares and their gradients add up, so the split into micro-batches changes nothing but memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_single.data import token_batch
from jaxrl_single.trainer import optim
from jaxrl_single.trainer import state as state_lib

Sums = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight); the metric is the quotient
Loss = Callable[
    [optim.Params, token_batch.TokenBatch, Any, Any], tuple[jax.Array, tuple[Sums, Any]]
]


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Of one update, over all its micro-batches.

    Attributes:
      loss: f32 scalar.
      trained: nested dict, the gradients of the trained leaves, f32.
      norm: f32, global norm before clipping.
      sums: what the loss function reported.
      carry: what the loss function handed from micro-batch to micro-batch.
    """

    loss: jax.Array
    trained: optim.Params
    norm: jax.Array
    sums: Sums
    carry: Any

    @property
    def finite(self) -> jax.Array:
        """bool: the update can be trusted."""
        return jnp.isfinite(self.loss) & jnp.isfinite(self.norm)


def gradients(
    loss: Loss,
    params: optim.Params,
    optimizer: optim.Optimizer,
    batch: token_batch.TokenBatch,
    *,
    arrays: Any = (),
    carry: Any = (),
) -> Gradients:
    """Sums loss, gradient and metrics over the micro-batches.

    Args:
      loss: (params, micro-batch, its part of `arrays`, carry) -> (share, (sums, carry)).
      params: nested dict; only the leaves that `optimizer` trains are differentiated.
      optimizer: says which leaves those are.
      batch: per-token arrays [M, B, T].
      arrays: pytree of further arrays with the leading axis M.
      carry: handed from one micro-batch to the next; a pytree of fixed shapes.
    """
    frozen = optim.frozen(params, optimizer.labels)

    def share(trained, inputs, carry):
        tokens, of_micro = inputs
        micro = dataclasses.replace(batch, **tokens)
        return loss(optim.merge(trained, frozen), micro, of_micro, carry)

    trained = optim.trainable(params, optimizer.labels)
    inputs = (token_batch.token_fields(batch), arrays)
    first = jax.tree.map(lambda leaf: leaf[0], inputs)
    zeros_like = functools.partial(jax.tree.map, lambda leaf: jnp.zeros(leaf.shape, jnp.float32))
    sums = zeros_like(jax.eval_shape(share, trained, first, carry)[1][0])

    def body(totals, inputs):
        total, summed, sums, carry = totals
        with_aux = jax.value_and_grad(share, has_aux=True)
        (value, (new_sums, carry)), gradient = with_aux(trained, inputs, carry)
        summed, sums = jax.tree.map(jnp.add, (summed, sums), (gradient, new_sums))
        return (total + value, summed, sums, carry), None

    start = (jnp.float32(0), zeros_like(trained), sums, carry)
    (total, summed, sums, carry), _ = jax.lax.scan(body, start, inputs)
    return Gradients(total, summed, optax.global_norm(summed), sums, carry)


def update(
    params: optim.Params,
    opt_state: optax.OptState,
    optimizer: optim.Optimizer,
    found: Gradients,
    *,
    num_tokens: jax.Array,
) -> tuple[optim.Params, optax.OptState]:
    """Applies the gradients, or changes nothing (no decay, no momentum, no count).

    Nothing changes when no token enters the loss, or when loss or gradient is not finite.
    """
    accept = found.finite & (num_tokens > 0)
    new_params, new_opt = optim.apply(params, opt_state, optimizer, found.trained)
    return state_lib.select(accept, (new_params, new_opt), (params, opt_state))


def summary(group: str, found: Gradients, *, num_tokens: jax.Array) -> dict[str, jax.Array]:
    """The facts of an update that every step reports, as `group/name`, float32 scalars."""
    return {
        f"{group}/loss": found.loss,
        f"{group}/grad_norm": found.norm,
        f"{group}/tokens": num_tokens,
        f"{group}/nonfinite": (~found.finite).astype(jnp.float32),
        f"{group}/empty_update": (num_tokens == 0).astype(jnp.float32),
    }


def quotients(sums: Sums) -> dict[str, jax.Array]:
    """sum / weight of each metric; NaN where nothing was counted."""
    return {
        name: jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1), jnp.nan)
        for name, (total, weight) in sums.items()
    }


def loss_tokens(batch: token_batch.TokenBatch) -> jax.Array:
    """Global count of the tokens that enter the loss, f32 scalar."""
    return jnp.sum(batch.loss_mask, dtype=jnp.float32)


def forward(
    function: Callable[[token_batch.TokenBatch], Any], batch: token_batch.TokenBatch
) -> Any:
    """Applies `function` to each micro-batch in turn and stacks the results: [M, ...]."""

    def body(_, tokens):
        return (), function(dataclasses.replace(batch, **tokens))

    return jax.lax.scan(body, (), token_batch.token_fields(batch))[1]
