"""The sampler's two programs: prefill of known tokens, and a chunk of decode steps.

Both take a donated cache and the host's small arrays, and neither keeps state of its own, so what
they compute for a slot is a function of that slot's row alone. The number of slots and the shapes
of a prefill are fixed for an engine: XLA rounds a matmul differently for other batch sizes.

A chunk feeds the known tokens that are not in the cache yet, one a step, and then samples. Where
prefill is not much cheaper per token than decode (small models on CPU), everything can go that way
and no second program is needed; large models prefill what is long and feed what is short. A chunk
ends early when no slot is active any more, so a few late episodes cost no empty steps.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single import types
from jaxrl_single.models import api
from jaxrl_single.ops import logprobs as logprob_ops
from jaxrl_single.sampler import inversion, recording

NO_TOKEN = -1  # fills `stop_tokens`; equals no token id


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """What a chunk needs to know of each slot, [S] unless said; filled by the host.

    Attributes:
      tokens: i32 [chunk, S], the known tokens whose keys and values are not in the cache, in
        order, as many as there are and as a chunk holds.
      num_known: i32, how many there are, >= 1: the last known token is always among them.
      positions: i32, of the first of them in the episode.
      active: bool, whether the slot samples.
      budgets: i32, tokens that it may still sample in this turn.
      temperatures: f32, > 0.
      tickets, attempts, turns: u32, the names of the turn's randomness.
      indices: u32, tokens already sampled in this turn.
      stop_tokens: i32 [S, n], NO_TOKEN where unused.
    """

    tokens: np.ndarray
    num_known: np.ndarray
    positions: np.ndarray
    active: np.ndarray
    budgets: np.ndarray
    temperatures: np.ndarray
    tickets: np.ndarray
    attempts: np.ndarray
    turns: np.ndarray
    indices: np.ndarray
    stop_tokens: np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampled:
    """A chunk's result; what slot s sampled lies in `counts[s]` steps from num_known[s] - 1 on.

    Attributes:
      tokens: i32 [chunk, S].
      logprobs: f32 [chunk, S], of the tokens under the distribution they were drawn from.
      entropies: f32 [chunk, S], nats, of that distribution.
      counts: i32 [S].
      stopped: bool [S], the last sampled token is a stop token.
      steps: i32 [], steps that were taken.
      recorded: [chunk, S, width], the fields that `types.Record` asks for, by name.
    """

    tokens: jax.Array
    logprobs: jax.Array
    entropies: jax.Array
    counts: jax.Array
    stopped: jax.Array
    steps: jax.Array
    recorded: recording.Rows


@functools.partial(jax.jit, static_argnames=("policy",), donate_argnames=("cache",))
def prefill(
    policy: api.Policy,
    params: api.Params,
    cache: Any,
    slots: np.ndarray,
    tokens: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
) -> Any:
    """`Policy.prefill` as one program: tokens [R, P] of `slots` [R] enter the cache."""
    return policy.prefill(params, cache, slots, tokens, starts, lengths)


@functools.partial(
    jax.jit, static_argnames=("policy", "num_steps", "record"), donate_argnames=("cache",)
)
def decode_chunk(
    policy: api.Policy,
    params: api.Params,
    cache: Any,
    rows: Rows,
    run_key: jax.Array,
    *,
    num_steps: int,
    record: types.Record,
) -> tuple[Any, Sampled]:
    """Takes up to `num_steps` steps in each active slot: known tokens first, then sampled ones.

    The token of index i in a turn is drawn by the key
    fold_in(fold_in(fold_in(fold_in(run_key, ticket), attempt), turn), i), its auxiliary draws by
    fold_in(that key, recording.AUX): never by the slot.
    """
    keys = _token_keys(run_key, rows, num_steps)
    uniforms = jax.vmap(jax.vmap(jax.random.uniform))(keys)
    aux_uniforms = recording.uniforms(record, keys)
    num_slots = rows.num_known.shape[0]
    recorded = recording.empty(record, num_steps, num_slots, policy.config.vocab_size)

    def unfinished(carry: tuple) -> jax.Array:
        _, _, active, sampled = carry
        return (sampled.steps < num_steps) & active.any()

    def take_step(carry: tuple) -> tuple:
        cache, newest, active, sampled = carry
        step = sampled.steps
        tokens = jnp.where(step < rows.num_known, rows.tokens[step], newest)
        logits, cache = policy.decode(params, cache, tokens, rows.positions + step, active)
        table = logprob_ops.log_softmax(logits, rows.temperatures[:, None])
        newest, logprobs, entropies = draw(table, uniforms[step])
        recorded = recording.rows(record, table, aux_uniforms[step])
        sampling = active & (step >= rows.num_known - 1)
        sampled = Sampled(
            tokens=sampled.tokens.at[step].set(newest),
            logprobs=sampled.logprobs.at[step].set(logprobs),
            entropies=sampled.entropies.at[step].set(entropies),
            counts=sampled.counts + sampling,
            stopped=sampled.stopped | (sampling & _is_stop(newest, rows.stop_tokens)),
            steps=step + 1,
            recorded={
                name: array.at[step].set(recorded[name]) for name, array in sampled.recorded.items()
            },
        )
        active = active & ~sampled.stopped & (sampled.counts < rows.budgets)
        return cache, newest, active, sampled

    nothing = _nothing_sampled(num_steps, num_slots, recorded)
    carry = (cache, rows.tokens[0], rows.active, nothing)
    cache, _, _, sampled = jax.lax.while_loop(unfinished, take_step, carry)
    return cache, sampled


def num_compilations() -> int:
    """Programs of this file that were compiled in this process."""
    return prefill._cache_size() + decode_chunk._cache_size()


def draw(logprobs: jax.Array, uniforms: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One token per row by inversion of the distribution function.

    One uniform per token instead of Gumbel noise over the vocabulary: less than half the cost on
    CPU. A token of probability 0 is never drawn, whatever the rounding of the partial sums.

    Args:
      logprobs: [S, V], of the distributions.
      uniforms: [S] in [0, 1).

    Returns:
      tokens i32 [S], their log-probs [S] and the entropies [S] in nats, float32.
    """
    tokens = inversion.invert(jnp.exp(logprobs), uniforms)
    return tokens, logprob_ops.pick(logprobs, tokens), logprob_ops.entropy(logprobs)


def _nothing_sampled(num_steps: int, num_slots: int, recorded: recording.Rows) -> Sampled:
    empty = jnp.zeros((num_steps, num_slots))
    return Sampled(
        tokens=empty.astype(jnp.int32),
        logprobs=empty,
        entropies=empty,
        counts=jnp.zeros(num_slots, jnp.int32),
        stopped=jnp.zeros(num_slots, bool),
        steps=jnp.zeros((), jnp.int32),
        recorded=recorded,
    )


def _token_keys(run_key: jax.Array, rows: Rows, num_steps: int) -> jax.Array:
    """[num_steps, S] of the whole chunk at once. Steps that only feed get any key."""
    fold = jax.vmap(jax.random.fold_in)
    keys = jnp.broadcast_to(run_key, rows.tickets.shape)
    for name in (rows.tickets, rows.attempts, rows.turns):
        keys = fold(keys, name)
    first = rows.indices - (rows.num_known - 1).astype(jnp.uint32)  # wraps while feeding
    indices = first[None, :] + jnp.arange(num_steps, dtype=jnp.uint32)[:, None]
    return jax.vmap(fold, in_axes=(None, 0))(keys, indices)


def _is_stop(tokens: jax.Array, stop_tokens: jax.Array) -> jax.Array:
    return (tokens[:, None] == stop_tokens).any(axis=-1)
