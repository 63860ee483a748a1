"""THE alignment of model outputs with tokens, written here and nowhere else.

A model reads token t and its hidden state there knows tokens 0..t of the segment, so what is said
about token t comes from the state at t - 1:

    logprobs[b, t]  of tokens[b, t] given what precedes it in its segment
    values[b, t]    value of the prefix before tokens[b, t]

Both are 0 where nothing precedes: at the first token of a segment and on padding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.data import token_batch
from jaxrl_single.models import api, platform
from jaxrl_single.objectives import kl_budget
from jaxrl_single.ops import logprobs as logprob_ops

# Numbers at one time, of all rows. A backward pass holds a few arrays of this size; on CPU larger
# ones are slower, too, because they leave the cache.
_MOST_LOGITS = {"cpu": 2**24, "accelerator": 2**28}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyOutputs:
    """What the policy says about each token of a micro-batch, at the token's temperature.

    At least float32, and 0 where nothing precedes the token. Gradients flow through all of them.

    Attributes:
      logprobs: [B, T], of the token.
      entropies: [B, T], nats, of the distribution that it was drawn from.
      aux_logprobs: [B, T, M], of the batch's aux_tokens; None without them.
      topk_logprobs: [B, T, K], of its topk_tokens; None without them.
      full_logprobs: [B, T, V], whole rows; None unless the batch holds full_logprobs.
      rerouted: [B, T, L] bool, where the layer's router itself would have taken other experts for
        the token than the batch's expert_ids; None without them.
    """

    logprobs: jax.Array
    entropies: jax.Array
    aux_logprobs: jax.Array | None = None
    topk_logprobs: jax.Array | None = None
    full_logprobs: jax.Array | None = None
    rerouted: jax.Array | None = None


def policy_forward(
    policy: api.Policy, params: dict[str, Any], micro: token_batch.TokenBatch, *, chunk: int
) -> PolicyOutputs:
    """Log-probs of each token, and of what the sampler recorded beside it.

    With the batch's expert_ids each token passes through the experts that the sampler's routers
    chose for it; their weights, and the gradient, are those of the router under `params`.

    Args:
      policy: the model.
      params: of the policy.
      micro: a micro-batch, per-token arrays [B, T].
      chunk: tokens per row whose logits exist at one time, at most: there are fewer where the
        vocabulary is large (with full_logprobs the logits of all tokens exist).
    """
    chex.assert_rank(micro.tokens, 2)
    hidden, rerouted = _hidden(policy, params, micro)
    # The small arrays move left to meet the hidden states, instead of [B, T, D] moving right.
    follows, temperature = _of_next(micro)
    asked = {
        "logprobs": micro.tokens[..., None],
        "aux_logprobs": micro.aux_tokens,
        "topk_logprobs": micro.topk_tokens,
    }
    ids = {
        name: jnp.where(follows[..., None], _left(tokens, fill=0), 0)
        for name, tokens in asked.items()
        if tokens is not None
    }
    if micro.full_logprobs is not None:
        ids["full_logprobs"] = None
    table = policy.unembedding(params)
    chunk = _affordable(chunk, len(hidden), table)
    found, entropies = logprob_ops.selected_logprobs(
        hidden, table, tuple(ids.values()), temperature, chunk=chunk
    )
    outputs = {
        name: _align(array, micro.segment_ids) for name, array in zip(ids, found, strict=True)
    }
    outputs["logprobs"] = outputs["logprobs"][..., 0]
    entropies = _align(entropies, micro.segment_ids)
    return PolicyOutputs(entropies=entropies, rerouted=rerouted, **outputs)


def position_kl(
    policy: api.Policy,
    before: dict[str, Any],
    after: dict[str, Any],
    micro: token_batch.TokenBatch,
    *,
    chunk: int,
) -> jax.Array:
    """KL(before || after) of the distribution of each token, [B, T] nats, to second order.

    See objectives/kl_budget.py. 0 where nothing precedes the token.

    Args:
      before, after: parameters of the policy.
      micro: a micro-batch, per-token arrays [B, T].
      chunk: as in `policy_forward`.
    """
    hidden = [_hidden(policy, params, micro)[0] for params in (before, after)]
    tables = [policy.unembedding(params) for params in (before, after)]
    _, temperature = _of_next(micro)

    def one_chunk(arrays):
        *states, temperature = arrays
        old, new = (
            jnp.einsum("btd,vd->btv", x, table, preferred_element_type=jnp.float32)
            for x, table in zip(states, tables, strict=True)
        )
        logprobs = logprob_ops.log_softmax(old, temperature[..., None])
        return kl_budget.position_kl(logprobs, new - old, temperature)

    chunk = _affordable(chunk, len(micro.tokens), tables[0])
    chunks = logprob_ops.split((*hidden, temperature), 1, chunk, fill=1)
    found = logprob_ops.join(jax.lax.map(one_chunk, chunks), 1, micro.tokens.shape[1])
    return _align(found, micro.segment_ids)


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


def _hidden(
    policy: api.Policy, params: dict[str, Any], micro: token_batch.TokenBatch
) -> tuple[jax.Array, jax.Array | None]:
    rows = (micro.tokens, micro.positions, micro.segment_ids)
    if micro.expert_ids is None:
        return policy.hidden(params, *rows), None
    return policy.replay(params, *rows, micro.expert_ids)


def _affordable(chunk: int, num_rows: int, unembedding: jax.Array) -> int:
    """`chunk`, or as many tokens of each row as memory has room for."""
    room = _MOST_LOGITS["cpu" if platform.on_cpu() else "accelerator"]
    return max(1, min(chunk, room // (num_rows * len(unembedding))))


def _of_next(micro: token_batch.TokenBatch) -> tuple[jax.Array, jax.Array]:
    """[B, T] of the token after each: whether there is one in the segment, and its temperature."""
    follows = _left(_has_predecessor(micro.segment_ids), fill=False)
    return follows, jnp.where(follows, _left(micro.temperature, fill=1), 1)


def _has_predecessor(segment_ids: jax.Array) -> jax.Array:
    """[B, T] bool: the token before is of the same segment."""
    before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
    return (segment_ids > 0) & (segment_ids == before)


def _left(array: jax.Array, *, fill: float) -> jax.Array:
    """Column t of [B, T, ...] takes what stood in column t + 1; the last takes `fill`."""
    return jnp.pad(array[:, 1:], _columns(array, (0, 1)), constant_values=fill)


def _align(after: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """What was said after token t - 1 becomes what is said of token t; 0 without predecessor."""
    moved = jnp.pad(after[:, :-1], _columns(after, (1, 0)))
    follows = _has_predecessor(segment_ids)
    return jnp.where(follows.reshape(follows.shape + (1,) * (after.ndim - 2)), moved, 0.0)


def _columns(array: jax.Array, widths: tuple[int, int]) -> list[tuple[int, int]]:
    """The padding of [B, T, ...] that pads its columns."""
    return [(0, 0), widths] + [(0, 0)] * (array.ndim - 2)
