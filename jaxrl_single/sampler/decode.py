"""The sampler's programs: prefill of known tokens, a chunk of decode steps, care of the pages.

They take a donated cache and the host's small arrays, and none keeps state of its own, so what
they compute for a slot is a function of that slot's row alone. The numbers of slots and the shapes
of a prefill are fixed for an engine: XLA rounds a matmul differently for other batch sizes.

A chunk feeds the known tokens that are not in the cache yet, one a step, and then samples. Where
prefill is not much cheaper per token than decode (small models on CPU), everything can go that way
and no second program is needed; large models prefill what is long and feed what is short. A chunk
ends early when no slot is active any more, so a few late episodes cost no empty steps.

A chunk pays for restrictions and for recorded rows only if one of its slots wants them. A plain
slot is drawn from its full distribution by the same operations beside restricted slots as without
them, so its numbers are the same bits.
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
from jaxrl_single.sampler import restrict as restrict_lib

NO_TOKEN = restrict_lib.NO_TOKEN


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PrefillRows:
    """Known tokens on their way into the cache, a row for each piece of a page; see `api.Policy`.

    Attributes:
      tokens: i32 [R, B]; those in columns first .. last - 1 count.
      page_index: i32 [R], which page of its slot the row is: column c holds the token at position
        page_index * B + c of the episode.
      first, last: i32 [R]; equal in a row that is not used.
      table: i32 [R, M], the page ids of the row's slot, in order.
    """

    tokens: np.ndarray
    page_index: np.ndarray
    first: np.ndarray
    last: np.ndarray
    table: np.ndarray


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
      temperatures: f32, > 0, of the full distribution; 1 for a greedy slot.
      seeds, tickets, attempts, turns: u32, the names of the turn's randomness.
      indices: u32, tokens already sampled in this turn.
      stop_tokens: i32 [S, n], NO_TOKEN where unused.
      forced: i32 [chunk, S], the token that a step takes instead of a draw, NO_TOKEN = draw.
      wanted: bool, whether the slot's recorded rows are wanted.
      limits: what restricts the slot's distribution.
      table: i32 [S, M], the page ids of each slot, in order.
      owner: i32 [P], the slot of each page; 0 for a free one.
      index: i32 [P], which page of its slot it is; M for a free one.
    """

    tokens: np.ndarray
    num_known: np.ndarray
    positions: np.ndarray
    active: np.ndarray
    budgets: np.ndarray
    temperatures: np.ndarray
    seeds: np.ndarray
    tickets: np.ndarray
    attempts: np.ndarray
    turns: np.ndarray
    indices: np.ndarray
    stop_tokens: np.ndarray
    forced: np.ndarray
    wanted: np.ndarray
    limits: restrict_lib.Limits
    table: np.ndarray
    owner: np.ndarray
    index: np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampled:
    """A chunk's result; what slot s sampled lies in `counts[s]` steps from num_known[s] - 1 on.

    Attributes:
      tokens: i32 [chunk, S].
      logprobs: f32 [chunk, S], of the tokens under the distribution they were drawn from; -inf
        for a forced token that could not have been drawn.
      untruncated_logprobs: f32 [chunk, S], of the tokens under the full distribution.
      entropies: f32 [chunk, S], nats, of the full distribution.
      counts: i32 [S].
      stopped: bool [S], the last sampled token is a stop token.
      broken: bool [S], a step had logits that are no distribution (NaN, +inf, or -inf for all that
        is allowed): it sampled nothing, and was the slot's last one.
      steps: i32 [], steps that were taken.
      recorded: [chunk, S, width], the fields that `types.Record` asks for, by name; zeros where no
        slot wants them.
      expert_ids: i16 [chunk, S, L, k], of the token that each step read, whether known or sampled;
        None unless recorded.
    """

    tokens: jax.Array
    logprobs: jax.Array
    untruncated_logprobs: jax.Array
    entropies: jax.Array
    counts: jax.Array
    stopped: jax.Array
    broken: jax.Array
    steps: jax.Array
    recorded: recording.Rows
    expert_ids: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _State:
    """Goes from step to step of a chunk; `newest` [S] is what the last step sampled."""

    cache: Any
    newest: jax.Array
    active: jax.Array
    sampled: Sampled


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Draws:
    """What a chunk works out before its first step.

    Attributes:
      uniforms: [chunk, S], one draws a token.
      aux_uniforms: [chunk, S, M].
      restricted: bool [], whether any slot is.
      offset: [S, V], see `restrict.offsets`.
    """

    uniforms: jax.Array
    aux_uniforms: jax.Array
    restricted: jax.Array
    offset: jax.Array


@functools.partial(jax.jit, static_argnames=("policy",), donate_argnames=("cache",))
def prefill(
    policy: api.Policy, serving: Any, cache: Any, rows: PrefillRows
) -> tuple[Any, jax.Array]:
    """`Policy.prefill` as one program: (cache, expert_ids [R, B, L, k])."""
    pieces = (rows.tokens, rows.page_index, rows.first, rows.last, rows.table)
    return policy.prefill(serving, cache, *pieces)


@functools.partial(
    jax.jit, static_argnames=("policy", "num_steps", "record"), donate_argnames=("cache",)
)
def decode_chunk(
    policy: api.Policy,
    serving: Any,
    cache: Any,
    rows: Rows,
    *,
    num_steps: int,
    record: types.Record,
) -> tuple[Any, Sampled]:
    """Takes up to `num_steps` steps in each active slot: known tokens first, then sampled ones.

    The token of index i in a turn is drawn by the key
    fold_in(fold_in(fold_in(fold_in(key(seed), ticket), attempt), turn), i), its auxiliary draws by
    fold_in(that key, recording.AUX): never by the slot.

    Args:
      serving: the parameters in the form of `Policy.serving`.
    """
    rows = jax.tree.map(jnp.asarray, rows)
    draws = _draws(rows, num_steps, record, policy.config.vocab_size)

    def unfinished(state: _State) -> jax.Array:
        return (state.sampled.steps < num_steps) & state.active.any()

    def take_step(state: _State) -> _State:
        step = state.sampled.steps
        tokens = jnp.where(step < rows.num_known, rows.tokens[step], state.newest)
        slots = (tokens, rows.positions + step, state.active, rows.table, rows.owner, rows.index)
        logits, cache, expert_ids = policy.decode(serving, state.cache, *slots)
        results = _results(logits, rows, draws, step, record)
        if record.experts:
            results["expert_ids"] = expert_ids
        broken = state.active & results.pop("broken")
        sampled, active = _append(state, rows, results, broken)
        return _State(cache, results["tokens"], active, sampled)

    nothing = _nothing_sampled(policy.config, len(rows.active), num_steps, record)
    state = _State(cache, rows.tokens[0], rows.active, nothing)
    state = jax.lax.while_loop(unfinished, take_step, state)
    return state.cache, state.sampled


@functools.partial(jax.jit, static_argnames=("policy", "num_pages"))
def resize(policy: api.Policy, cache: Any, num_pages: int) -> Any:
    """A cache with so many pages; the first ones are kept. Not donated: no array keeps its size."""
    return policy.resize_cache(cache, num_pages)


@functools.partial(jax.jit, static_argnames=("policy",), donate_argnames=("cache",))
def copy_pages(policy: api.Policy, cache: Any, sources: np.ndarray, targets: np.ndarray) -> Any:
    """Pages `sources` i32 [n] go to `targets` [n]; a target beyond the cache is ignored."""
    return policy.copy_pages(cache, sources, targets)


@functools.partial(jax.jit, donate_argnames=("cache",))
def clear_pages(cache: Any, pages: np.ndarray) -> Any:
    """Zeros in `pages` i32 [n]; one beyond the cache is ignored."""
    return jax.tree.map(lambda pool: pool.at[pages].set(0, mode="drop"), cache)


def num_compilations() -> int:
    """Programs of this file that were compiled in this process."""
    return sum(program._cache_size() for program in (prefill, decode_chunk, resize, copy_pages))


def draw(logprobs: jax.Array, uniforms: jax.Array) -> jax.Array:
    """One token per row by inversion of the distribution function, i32 [S].

    One uniform per token instead of Gumbel noise over the vocabulary: less than half the cost on
    CPU. A token of probability 0 is never drawn, whatever the rounding of the partial sums.

    Args:
      logprobs: [S, V], of the distributions.
      uniforms: [S] in [0, 1).
    """
    return inversion.invert(jnp.exp(logprobs), uniforms)


def _draws(rows: Rows, num_steps: int, record: types.Record, vocab_size: int) -> _Draws:
    keys = _token_keys(rows, num_steps)
    shape = (*keys.shape, record.num_aux)
    restricted = restrict_lib.needed(rows.limits).any()
    return _Draws(
        uniforms=jax.vmap(jax.vmap(jax.random.uniform))(keys),
        aux_uniforms=jax.lax.cond(
            rows.wanted.any(),
            lambda: recording.uniforms(record, keys),
            lambda: jnp.zeros(shape),
        ),
        restricted=restricted,
        offset=jax.lax.cond(
            restricted,
            lambda: restrict_lib.offsets(rows.limits, vocab_size),
            lambda: jnp.zeros((keys.shape[1], vocab_size)),
        ),
    )


def _results(
    logits: jax.Array, rows: Rows, draws: _Draws, step: jax.Array, record: types.Record
) -> dict[str, Any]:
    """One step's row of each field of `Sampled` that holds one for every step, and `broken`."""
    table = logprob_ops.log_softmax(logits, rows.temperatures[:, None])
    drawn_from = jax.lax.cond(
        draws.restricted,
        lambda: restrict_lib.restrict(table, draws.offset, rows.limits),
        lambda: table,
    )
    drawn = draw(drawn_from, draws.uniforms[step])
    forced = rows.forced[step]
    tokens = jnp.where(forced == NO_TOKEN, drawn, forced)
    return {
        "tokens": tokens,
        "logprobs": _pick(drawn_from, tokens),
        "untruncated_logprobs": _pick(table, tokens),
        "entropies": logprob_ops.entropy(table),
        # A log-softmax is NaN as a whole or nowhere, so one column tells of all.
        "broken": jnp.isnan(drawn_from[:, 0]),
        "recorded": jax.lax.cond(
            rows.wanted.any(),
            lambda: recording.rows(record, table, draws.aux_uniforms[step]),
            lambda: recording.empty(record, *table.shape),
        ),
    }


def _pick(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """The entry of each row's token; by a gather, as no gradient flows here."""
    return jnp.take_along_axis(table, tokens[:, None], axis=-1)[:, 0]


def _append(
    state: _State, rows: Rows, results: dict[str, Any], broken: jax.Array
) -> tuple[Sampled, jax.Array]:
    """(what was sampled with one step more, which slots go on)."""
    sampled, step = state.sampled, state.sampled.steps
    sampling = state.active & ~broken & (step >= rows.num_known - 1)
    appended = {
        name: jax.tree.map(
            lambda array, row: array.at[step].set(row.astype(array.dtype)),
            getattr(sampled, name),
            row,
        )
        for name, row in results.items()
    }
    sampled = dataclasses.replace(
        sampled,
        counts=sampled.counts + sampling,
        stopped=sampled.stopped | (sampling & _is_stop(results["tokens"], rows.stop_tokens)),
        broken=sampled.broken | broken,
        steps=step + 1,
        **appended,
    )
    going_on = ~sampled.stopped & ~sampled.broken & (sampled.counts < rows.budgets)
    return sampled, state.active & going_on


def _nothing_sampled(config: Any, num_slots: int, num_steps: int, record: types.Record) -> Sampled:
    empty = jnp.zeros((num_steps, num_slots))
    experts = (num_steps, num_slots, config.num_moe_layers, config.experts_per_token)
    return Sampled(
        tokens=empty.astype(jnp.int32),
        logprobs=empty,
        untruncated_logprobs=empty,
        entropies=empty,
        counts=jnp.zeros(num_slots, jnp.int32),
        stopped=jnp.zeros(num_slots, bool),
        broken=jnp.zeros(num_slots, bool),
        steps=jnp.zeros((), jnp.int32),
        recorded={
            name: jnp.zeros((num_steps, *row.shape), row.dtype)
            for name, row in recording.empty(record, num_slots, config.vocab_size).items()
        },
        expert_ids=jnp.zeros(experts, jnp.int16) if record.experts else None,
    )


def _token_keys(rows: Rows, num_steps: int) -> jax.Array:
    """[num_steps, S] of the whole chunk at once. Steps that only feed get any key."""
    first = rows.indices - (rows.num_known - 1).astype(jnp.uint32)  # wraps while feeding
    indices = first[None, :] + jnp.arange(num_steps, dtype=jnp.uint32)[:, None]
    shape = indices.shape
    names = [jnp.broadcast_to(x, shape) for x in (rows.tickets, rows.attempts, rows.turns)]
    keys = jnp.broadcast_to(jax.vmap(jax.random.key)(rows.seeds), shape)
    fold = jax.vmap(jax.vmap(jax.random.fold_in))
    # A loop, because XLA:CPU compiles each copy of the hash for most of a second.
    keys, _ = jax.lax.scan(
        lambda keys, name: (fold(keys, name), None), keys, jnp.stack([*names, indices])
    )
    return keys


def _is_stop(tokens: jax.Array, stop_tokens: jax.Array) -> jax.Array:
    return (tokens[:, None] == stop_tokens).any(axis=-1)
