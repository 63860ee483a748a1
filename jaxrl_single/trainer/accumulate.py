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

from jaxrl_single.data import token_batch
from jaxrl_single.trainer import optim
from jaxrl_single.trainer import state as state_lib

Sums = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight); the metric is the quotient


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Aux:
    """What a loss function returns besides its share of the loss.

    Attributes:
      sums: (sum, weight) pairs, added over micro-batches.
      outputs: pytree, stacked over micro-batches.
      carry: pytree of fixed shapes, handed to the next micro-batch.
    """

    sums: Sums = dataclasses.field(default_factory=dict)
    outputs: Any = ()
    carry: Any = ()


Loss = Callable[[optim.Params, token_batch.TokenBatch, Any, Any], tuple[jax.Array, Aux]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gradients:
    """Of one update, over all its micro-batches.

    Attributes:
      loss: f32 scalar.
      trained: nested dict, the gradients of the trained leaves, f32.
      norm: f32, global norm before clipping.
      aux: sums added, outputs stacked [M, ...], carry of the last micro-batch.
      probed: slopes of the loss by the probes, stacked [M, ...].
    """

    loss: jax.Array
    trained: optim.Params
    norm: jax.Array
    aux: Aux
    probed: Any = ()

    @property
    def finite(self) -> jax.Array:
        """bool: the update can be trusted. A norm that overflows float32 cannot."""
        return jnp.isfinite(self.loss) & jnp.isfinite(self.norm)


def gradients(
    loss: Loss,
    params: optim.Params,
    optimizer: optim.Optimizer,
    batch: token_batch.TokenBatch,
    *,
    arrays: Any = (),
    carry: Any = (),
    probes: tuple[jax.Array, ...] = (),
) -> Gradients:
    """Sums loss, gradient and metrics over the micro-batches.

    Args:
      loss: (params, micro-batch, its part of `arrays`, carry) -> (share, Aux).
      params: nested dict; only the leaves that `optimizer` trains are differentiated.
      optimizer: says which leaves those are.
      batch: per-token arrays [M, B, T].
      arrays: pytree of further arrays with the leading axis M.
      carry: for the first micro-batch.
      probes: further arrays with the leading axis M, by which the loss is differentiated too; it
        gets them behind those of `arrays`, which is then a tuple.
    """
    frozen = optim.frozen(params, optimizer.labels)
    trained = optim.trainable(params, optimizer.labels)

    @jax.jit  # traced once for its shapes and its gradient
    def share(trained, probes, inputs, carry):
        tokens, of_micro = inputs
        micro = dataclasses.replace(batch, **tokens)
        of_micro = (*of_micro, *probes) if probes else of_micro
        return loss(optim.merge(trained, frozen), micro, of_micro, carry)

    inputs = (probes, (token_batch.token_fields(batch), arrays))
    first = jax.tree.map(lambda leaf: leaf[0], inputs)
    zeros = functools.partial(jax.tree.map, lambda leaf: jnp.zeros(leaf.shape, jnp.float32))
    sums = zeros(jax.eval_shape(share, trained, *first, carry)[1].sums)
    slopes = jax.value_and_grad(share, argnums=(0, 1), has_aux=True)

    def body(totals, inputs):
        value, gradient, sums, carry = totals
        (new, aux), (slope, probed) = slopes(trained, *inputs, carry)
        added = jax.tree.map(jnp.add, (value, gradient, sums), (new, slope, aux.sums))
        return (*added, aux.carry), (aux.outputs, probed)

    start = (jnp.float32(0), zeros(trained), sums, carry)
    (value, gradient, sums, carry), (outputs, probed) = jax.lax.scan(body, start, inputs)
    norm = _global_norm(gradient)
    return Gradients(value, gradient, norm, Aux(sums, outputs, carry), probed)


def update(
    params: optim.Params,
    opt_state: optim.OptState,
    optimizer: optim.Optimizer,
    found: Gradients,
    *,
    num_tokens: jax.Array,
) -> tuple[optim.Params, optim.OptState]:
    """Applies the gradients, or changes nothing (no decay, no momentum, no count).

    Nothing changes when no token enters the loss, or when loss or gradient is not finite.
    """
    accept = found.finite & (num_tokens > 0)
    new_params, new_opt = optim.apply(params, opt_state, optimizer, found.trained)
    return state_lib.select(accept, (new_params, new_opt), (params, opt_state))


def forward(
    function: Callable[[token_batch.TokenBatch], Any], batch: token_batch.TokenBatch
) -> Any:
    """Applies `function` to each micro-batch in turn and stacks the results: [M, ...]."""

    def body(_, tokens):
        return (), function(dataclasses.replace(batch, **tokens))

    return jax.lax.scan(body, (), token_batch.token_fields(batch))[1]


def loss_tokens(batch: token_batch.TokenBatch) -> jax.Array:
    """Global count of the tokens that enter the loss, f32 scalar."""
    return jnp.sum(batch.loss_mask, dtype=jnp.float32)


def guards(num_tokens: jax.Array, finite: jax.Array) -> dict[str, jax.Array]:
    """The metrics that every step reports: was there something to train, and was it sound."""
    return {
        "train/action_tokens": num_tokens,
        "train/empty_update": (num_tokens == 0).astype(jnp.float32),
        "train/nonfinite": (~finite).astype(jnp.float32),
    }


def _global_norm(tree: optim.Params) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
