"""THE alignment of model outputs with tokens, written here and nowhere else.

A model reads token t and its hidden state there knows tokens 0..t of the segment, so what is said
about token t comes from the state at t - 1:

    logprobs[b, t]  of tokens[b, t] given what precedes it in its segment
    values[b, t]    value of the prefix before tokens[b, t]

Both are 0 where nothing precedes: at the first token of a segment and on padding.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.ops import logprobs as logprob_ops


def policy_forward(
    policy: api.Policy, params: dict[str, Any], micro: token_batch.TokenBatch, *, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each token, and entropy of the distribution that it was drawn from.

    Args:
      policy: the model.
      params: of the policy; gradients flow to them through the log-probs only.
      micro: a micro-batch, per-token arrays [B, T].
      chunk: tokens per row whose logits exist at one time.

    Returns:
      logprobs, entropies: [B, T] float32 at the temperature of the token, entropies in nats.
    """
    chex.assert_rank(micro.tokens, 2)
    hidden = policy.hidden(params, micro.tokens, micro.positions, micro.segment_ids)
    # The small arrays move left to meet the hidden states, instead of [B, T, D] moving right.
    follows = _left(_has_predecessor(micro.segment_ids), fill=False)
    targets = jnp.where(follows, _left(micro.tokens, fill=0), 0)
    temperature = jnp.where(follows, _left(micro.temperature, fill=1), 1)
    logprobs, entropies = logprob_ops.token_logprobs(
        hidden, policy.unembedding(params), targets, temperature, chunk=chunk
    )
    return _align(logprobs, micro.segment_ids), _align(entropies, micro.segment_ids)


def critic_forward(
    critic: api.Critic, params: dict[str, Any], micro: token_batch.TokenBatch
) -> tuple[jax.Array, jax.Array]:
    """Values before and after each token of a micro-batch.

    Returns:
      values: [B, T] float32, of the prefix before the token.
      values_after: [B, T] float32, of the prefix that ends with the token; anything on padding.
    """
    chex.assert_rank(micro.tokens, 2)
    after = critic.values(params, micro.tokens, micro.positions, micro.segment_ids)
    return _align(after, micro.segment_ids), after


def bootstrap_values(values_after: jax.Array, batch: token_batch.TokenBatch) -> jax.Array:
    """Value of what would have come after each trajectory, [N] float32; 0 where it terminated.

    Args:
      values_after: [M, B, T], second output of `critic_forward` for all micro-batches.
      batch: the whole batch.
    """
    ends = values_after.reshape(-1)[batch.last_token]
    return jnp.where(batch.bootstrap, ends, 0.0)


def _has_predecessor(segment_ids: jax.Array) -> jax.Array:
    """[B, T] bool: the token before is of the same segment."""
    before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
    return (segment_ids > 0) & (segment_ids == before)


def _left(array: jax.Array, *, fill: float) -> jax.Array:
    """Column t takes what stood in column t + 1; the last takes `fill`."""
    return jnp.pad(array[:, 1:], ((0, 0), (0, 1)), constant_values=fill)


def _align(after: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """What was said after token t - 1 becomes what is said of token t; 0 without predecessor."""
    moved = jnp.pad(after[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(_has_predecessor(segment_ids), moved, 0.0)
