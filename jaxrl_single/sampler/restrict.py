"""The distribution that a slot really draws from when a request restricts it.

The order is that of `wire.Request`: biases and allowed tokens, temperature, top-k, top-p of what is
left, min-p of what is left. The temperature has been applied when a restriction gets its row, so a
bias is divided by it here. Tokens as likely as the last one that stays, stay too, so what stays
does not depend on the order of ids.

No row is sorted. A cutoff is found by bisection over the 2^32 float32 numbers, taken as integers in
their order: 32 sums over the vocabulary, which cost XLA:CPU a twentieth of its sort.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single import wire

MAX_BIASED = 300  # tokens that a request may name with biases or as allowed; a static shape
NO_TOKEN = -1  # fills lists of tokens; equals no token id


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Limits:
    """What restricts each slot's distribution, [S] unless said; filled by the host.

    Attributes:
      top_ks: i32, 0 = off.
      top_ps: f32 in (0, 1], 1 = off.
      min_ps: f32 in [0, 1], 0 = off.
      greedy: bool, only the likeliest token (the first of equals) may be drawn.
      bias_tokens: i32 [S, MAX_BIASED], NO_TOKEN where unused; no token twice in a row.
      bias_values: f32 [S, MAX_BIASED], added to the log-probs of bias_tokens: the biases of the
        logits over the temperature.
      allowed_only: bool, only bias_tokens may be drawn.
    """

    top_ks: np.ndarray
    top_ps: np.ndarray
    min_ps: np.ndarray
    greedy: np.ndarray
    bias_tokens: np.ndarray
    bias_values: np.ndarray
    allowed_only: np.ndarray

    @classmethod
    def none(cls, num_slots: int) -> Limits:
        """No restriction in any slot; numpy arrays for the host to fill."""
        return cls(
            top_ks=np.zeros(num_slots, np.int32),
            top_ps=np.ones(num_slots, np.float32),
            min_ps=np.zeros(num_slots, np.float32),
            greedy=np.zeros(num_slots, np.bool_),
            bias_tokens=np.full((num_slots, MAX_BIASED), NO_TOKEN, np.int32),
            bias_values=np.zeros((num_slots, MAX_BIASED), np.float32),
            allowed_only=np.zeros(num_slots, np.bool_),
        )

    def of(self, slots: np.ndarray) -> Limits:
        """Rows of `slots`."""
        fields = dataclasses.fields(self)
        return Limits(**{field.name: getattr(self, field.name)[slots] for field in fields})

    def put(self, slot: int, request: wire.Request) -> None:
        """Writes the restrictions of a request into the host's arrays."""
        values = dict(request.logit_bias)
        if request.allowed_token_ids:
            values = {token: values.get(token, 0.0) for token in request.allowed_token_ids}
        self.top_ks[slot] = min(request.top_k, np.iinfo(np.int32).max)
        self.top_ps[slot] = request.top_p
        self.min_ps[slot] = request.min_p
        self.greedy[slot] = request.temperature == 0
        self.bias_tokens[slot] = NO_TOKEN
        self.bias_tokens[slot, : len(values)] = list(values)
        # softmax((logits + bias) / T) is the softmax of log softmax(logits / T) + bias / T.
        scale = request.temperature or 1.0  # greedy: the likeliest of logits + bias
        self.bias_values[slot, : len(values)] = [value / scale for value in values.values()]
        self.allowed_only[slot] = bool(request.allowed_token_ids)

    def clear(self, slot: int) -> None:
        """Lifts what restricts a slot, so that no chunk pays for it any longer."""
        none = Limits.none(1)
        for field in dataclasses.fields(self):
            getattr(self, field.name)[slot] = getattr(none, field.name)[0]


def needed(limits: Limits) -> jax.Array:
    """Which slots draw from anything but the full distribution, bool [S]."""
    truncated = (limits.top_ks > 0) | (limits.top_ps < 1) | (limits.min_ps > 0)
    listed = (limits.bias_tokens != NO_TOKEN).any(axis=-1) | limits.allowed_only
    return truncated | listed | limits.greedy


def offsets(limits: Limits, vocab_size: int) -> jax.Array:
    """What is added to the log-probs of each slot, f32 [S, V]; -inf forbids."""
    row = jnp.arange(len(limits.allowed_only))[:, None]
    start = jnp.where(jnp.asarray(limits.allowed_only), -jnp.inf, 0.0)
    table = jnp.broadcast_to(start[:, None], (len(limits.allowed_only), vocab_size))
    # A negative index would count from the end; one behind the end is dropped.
    at = jnp.where(limits.bias_tokens == NO_TOKEN, vocab_size, limits.bias_tokens)
    return table.at[row, at].set(limits.bias_values, mode="drop")


def restrict(logprobs: jax.Array, offset: jax.Array, limits: Limits) -> jax.Array:
    """Log-probs of the distributions that are really drawn from, [S, V]; -inf = cut off.

    Slots without a restriction keep the bits of their log-probs.

    Args:
      logprobs: [S, V], of the full distributions at their temperature.
      offset: [S, V], from `offsets`; at least one entry of a row is finite.
    """
    scores = logprobs + offset
    best = scores.max(axis=-1)
    weights = jnp.exp(scores - best[:, None])
    cutoff = _top_k_cutoff(scores, limits)
    weights = jnp.where(scores >= cutoff[:, None], weights, 0.0)
    cutoff = jnp.maximum(cutoff, _top_p_cutoff(scores, weights, limits))
    cutoff = jnp.maximum(cutoff, best + jnp.log(limits.min_ps))
    # The likeliest stays whatever the rounding of a tiny mass.
    kept = scores >= jnp.minimum(cutoff, best)[:, None]
    kept = jnp.where(limits.greedy[:, None], _is_first(scores == best[:, None]), kept)
    restricted = jax.nn.log_softmax(jnp.where(kept, scores, -jnp.inf), axis=-1)
    return jnp.where(needed(limits)[:, None], restricted, logprobs)


def _top_k_cutoff(scores: jax.Array, limits: Limits) -> jax.Array:
    """The k-th largest score, -inf where off, [S]."""
    on = limits.top_ks > 0
    counts = jnp.where(on, limits.top_ks, scores.shape[-1]).astype(jnp.float32)
    return _if_any(on, lambda: _cutoff(scores, jnp.ones_like(scores), counts))


def _top_p_cutoff(scores: jax.Array, weights: jax.Array, limits: Limits) -> jax.Array:
    """The largest score that has the mass top_p at or above it, -inf where off, [S]."""
    masses = limits.top_ps * weights.sum(axis=-1)
    return _if_any(limits.top_ps < 1, lambda: _cutoff(scores, weights, masses))


def _if_any(on: jax.Array, cutoff) -> jax.Array:
    """cutoff() [S] where `on` [S], else -inf; nothing is computed if no slot is on."""
    off = jnp.full(on.shape, -jnp.inf)
    return jax.lax.cond(jnp.any(on), lambda: jnp.where(on, cutoff(), off), lambda: off)


def _cutoff(scores: jax.Array, weights: jax.Array, targets: jax.Array) -> jax.Array:
    """The largest number with weights of at least the target at scores >= it, [S].

    Sums of more weights >= 0 are never smaller, rounded or not, so bisection finds it. -inf if all
    weights together are too little.
    """

    # The mean of two integers whose sum may overflow.
    def halve(_, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        above = scores >= _float_of(middle)[:, None]
        enough = jnp.where(above, weights, 0.0).sum(axis=-1) >= targets
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    ends = (jnp.full(targets.shape, _order_of(x)) for x in (-jnp.inf, jnp.inf))
    low, _ = jax.lax.fori_loop(0, 32, halve, tuple(ends))
    return _float_of(low)


def _order_of(number: float) -> jax.Array:
    """float32 as int32 in the same order."""
    bits = jax.lax.bitcast_convert_type(jnp.float32(number), jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _float_of(order: jax.Array) -> jax.Array:
    """Undoes `_order_of`."""
    bits = jnp.where(order < 0, order ^ 0x7FFFFFFF, order)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _is_first(flags: jax.Array) -> jax.Array:
    """[S, V] bool: only the first True of each row stays."""
    places = jnp.arange(flags.shape[-1])[None]
    first = jnp.min(jnp.where(flags, places, flags.shape[-1]), axis=-1, keepdims=True)
    return places == first
