"""THE distribution over the next token, used by trainer and sampler alike.

`log_softmax(logits, temperature)` defines it. `token_logprobs` and `selected_logprobs` are the same
distribution for many known tokens at once, from hidden states, without ever holding [T, V] logits:
they are made chunk by chunk in the forward pass and made again in the backward pass (about 4/3 of
the projection's work against memory of V x T floats).
"""

import functools

import chex
import jax
import jax.numpy as jnp

from jaxrl_single.ops import masked

_NARROW = 256  # vocabularies up to this are compared with K ids at once


def log_softmax(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Log-probabilities of logits / temperature, in at least float32.

    Args:
      logits: [..., V]; -inf forbids a token.
      temperature: > 0; a scalar, or broadcastable against [..., 1].
    """
    return jax.nn.log_softmax(masked.as_float(logits) / temperature, axis=-1)


def entropy(logprobs: jax.Array) -> jax.Array:
    """Entropy in nats of log-probabilities [..., V] over the full vocabulary, [...].

    NaN, of logits that are not finite, stays NaN.
    """
    possible = logprobs != -jnp.inf
    finite = jnp.where(possible, logprobs, 0.0)
    return -jnp.sum(jnp.where(possible, jnp.exp(finite) * finite, 0.0), axis=-1)


def pick(logprobs: jax.Array, tokens: jax.Array) -> jax.Array:
    """The entry of each token: [..., V] and i32 [...] give [...]; 0 for an id outside 0..V-1.

    By comparison instead of a gather, whose gradient would be a scatter into the vocabulary.
    """
    return jnp.sum(jnp.where(_one_hot(tokens, logprobs.shape[-1]), logprobs, 0.0), axis=-1)


def token_logprobs(
    hidden: jax.Array,
    unembedding: jax.Array,
    tokens: jax.Array,
    temperature: jax.Array,
    *,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each token and entropy of its distribution, as `log_softmax` defines it.

    Leading batch axes are kept as they are (and so stay sharded as they are); chunks are cut from
    the token axis. Gradients flow to `hidden` and `unembedding`. A token whose cotangents are 0
    contributes exactly nothing to either gradient, even if its hidden state or temperature is not
    finite. An output that no gradient comes from costs nothing in the backward pass.

    Args:
      hidden: [..., T, D], the state from which each token is predicted.
      unembedding: [V, D].
      tokens: i32 [..., T]; an id outside 0..V-1 gives log-prob 0.
      temperature: float [..., T], > 0 wherever the result is used.
      chunk: tokens per row of which the logits exist at one time, > 0.

    Returns:
      logprobs, entropies: [..., T] in at least float32; entropies in nats.

    Raises:
      ValueError: chunk is not positive.
    """
    ids = (tokens[..., None],)
    (logprobs,), entropies = selected_logprobs(hidden, unembedding, ids, temperature, chunk=chunk)
    return logprobs[..., 0], entropies


def selected_logprobs(
    hidden: jax.Array,
    unembedding: jax.Array,
    ids: tuple[jax.Array | None, ...],
    temperature: jax.Array,
    *,
    chunk: int,
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """`token_logprobs` of several ids at each position, from one projection.

    Args:
      hidden, unembedding, temperature, chunk: as in `token_logprobs`.
      ids: selections; each i32 [..., T, K] with a K of its own, duplicates allowed, or None for all
        V tokens in order (that result is as large as the logits of all tokens).

    Returns:
      logprobs: a tuple, for each selection [..., T, K] (K = V for None).
      entropies: [..., T], nats.

    Raises:
      ValueError: chunk is not positive.
    """
    if chunk <= 0:
        raise ValueError(f"token_logprobs: chunk is {chunk}, it must be a positive token count")
    chex.assert_shape(hidden, (*temperature.shape, unembedding.shape[-1]))
    for of_one in ids:
        if of_one is not None:
            chex.assert_shape(of_one, (*temperature.shape, of_one.shape[-1]))
    chunk = min(chunk, temperature.shape[-1])
    return _selected_logprobs(chunk, hidden, unembedding, ids, temperature)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _selected_logprobs(chunk, hidden, unembedding, ids, temperature):
    def one_chunk(arrays):
        chunk_hidden, chunk_ids, chunk_temperature = arrays
        logprobs = _chunk_log_softmax(chunk_hidden, unembedding, chunk_temperature)
        return tuple(_select(logprobs, of_one) for of_one in chunk_ids), entropy(logprobs)

    axis, num_tokens = temperature.ndim - 1, temperature.shape[-1]
    chunks = (
        split(hidden, axis, chunk, fill=0),
        split(ids, axis, chunk, fill=0),
        split(temperature, axis, chunk, fill=1),
    )
    return join(jax.lax.map(one_chunk, chunks), axis, num_tokens)


def _forward(chunk, *primals):
    arguments = jax.custom_derivatives.custom_vjp_primal_tree_values(primals)
    return _selected_logprobs(chunk, *arguments), arguments


def _backward(chunk, residuals, cotangents):
    hidden, unembedding, ids, temperature = residuals
    ids, of_ids, of_entropy = _without_zeros(ids, *cotangents)
    axis, dtype = temperature.ndim - 1, unembedding.dtype
    wide = _wide(hidden, unembedding)
    batch_and_token = tuple(range(temperature.ndim))

    def one_chunk(unembedding_gradient, arrays):
        chunk_hidden, chunk_temperature, *of_outputs = arrays
        logprobs = _chunk_log_softmax(chunk_hidden, unembedding, chunk_temperature)
        logits_gradient = _logits_gradient(logprobs, chunk_temperature, *of_outputs).astype(dtype)
        hidden_gradient = jnp.matmul(logits_gradient, unembedding, preferred_element_type=wide)
        unembedding_gradient += jnp.tensordot(
            logits_gradient,
            chunk_hidden,
            (batch_and_token, batch_and_token),
            preferred_element_type=wide,
        )
        return unembedding_gradient, hidden_gradient.astype(hidden.dtype)

    used = _is_used(of_ids, of_entropy)
    chunks = (
        split(jnp.where(used[..., None], hidden, 0), axis, chunk, fill=0),
        split(jnp.where(used, temperature, 1), axis, chunk, fill=1),
        *split((ids, of_ids, of_entropy), axis, chunk, fill=0),
    )
    zeros = jnp.zeros(unembedding.shape, wide)
    unembedding_gradient, hidden_gradient = jax.lax.scan(one_chunk, zeros, chunks)
    hidden_gradient = join(hidden_gradient, axis, temperature.shape[axis])
    return hidden_gradient, unembedding_gradient.astype(dtype), None, None


# Symbolic zeros say while tracing which outputs no gradient comes from: these cost nothing.
_selected_logprobs.defvjp(_forward, _backward, symbolic_zeros=True)


def _without_zeros(ids, of_ids, of_entropy):
    """The selections and cotangents of the outputs that a gradient comes from."""

    def is_zero(cotangent):
        return isinstance(cotangent, jax.custom_derivatives.SymbolicZero)

    pairs = [pair for pair in zip(ids, of_ids, strict=True) if not is_zero(pair[1])]
    ids, of_ids = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    return ids, of_ids, None if is_zero(of_entropy) else of_entropy


def _is_used(of_ids, of_entropy):
    """[..., T] bool: some output of the token has a cotangent."""
    flags = [jnp.any(cotangent != 0, axis=-1) for cotangent in of_ids]
    if of_entropy is not None:
        flags.append(of_entropy != 0)
    return functools.reduce(jnp.logical_or, flags)


def _logits_gradient(logprobs, temperature, ids, of_ids, of_entropy):
    """Gradient with respect to the logits before the temperature, [..., V]."""
    probabilities = jnp.exp(logprobs)
    parts = [
        _select_gradient(of_one, cotangent / temperature[..., None], probabilities)
        for of_one, cotangent in zip(ids, of_ids, strict=True)
    ]
    if of_entropy is not None:
        surprise = logprobs + entropy(logprobs)[..., None]
        parts.append(-(of_entropy / temperature)[..., None] * probabilities * surprise)
    return functools.reduce(jnp.add, parts)


def _select(logprobs, ids):
    """[..., V] and ids [..., K] give [..., K]; all V without ids."""
    if ids is None:
        return logprobs
    if _compares(ids, logprobs):
        return pick(logprobs[..., None, :], ids)
    taken = jnp.take_along_axis(logprobs, jnp.clip(ids, 0, logprobs.shape[-1] - 1), axis=-1)
    return jnp.where(_inside(ids, logprobs), taken, 0.0)


def _select_gradient(ids, cotangent, probabilities):
    """Of `_select` after a softmax, with respect to the scaled logits, [..., V]."""
    if ids is None:
        return cotangent - probabilities * jnp.sum(cotangent, axis=-1, keepdims=True)
    if _compares(ids, probabilities):
        score = _one_hot(ids, probabilities.shape[-1]) - probabilities[..., None, :]
        return jnp.sum(cotangent[..., None] * score, axis=-2)
    width, vocab_size = ids.shape[-1], probabilities.shape[-1]
    places = jnp.where(_inside(ids, probabilities), ids, vocab_size).reshape(-1, width)
    rows = jnp.zeros((len(places), vocab_size), cotangent.dtype)
    row = jnp.arange(len(places))[:, None]
    chosen = rows.at[row, places].add(cotangent.reshape(-1, width), mode="drop")
    chosen = chosen.reshape(probabilities.shape)
    return chosen - probabilities * jnp.sum(cotangent, axis=-1, keepdims=True)


def _compares(ids, logprobs):
    """Whether to find ids by comparison with the vocabulary: [..., K, V] must stay small."""
    return ids.shape[-1] == 1 or logprobs.shape[-1] <= _NARROW


def _inside(ids, logprobs):
    return (ids >= 0) & (ids < logprobs.shape[-1])


def _chunk_log_softmax(hidden, unembedding, temperature):
    wide = _wide(hidden, unembedding)
    logits = jnp.matmul(hidden, unembedding.T, preferred_element_type=wide)
    return log_softmax(logits, temperature[..., None])


def _wide(hidden, unembedding):
    """The dtype of sums: at least float32."""
    return jnp.promote_types(jnp.result_type(hidden, unembedding), jnp.float32)


def _one_hot(tokens, vocab_size):
    """Tokens [...] as bool [..., V]; all False for an id outside 0..V-1."""
    ids = jax.lax.broadcasted_iota(tokens.dtype, (*tokens.shape, vocab_size), tokens.ndim)
    return tokens[..., None] == ids


def split(tree, axis, chunk, *, fill):
    """Cuts axis T into the chunks of a scan: [..., T, *] -> [T / chunk, ..., chunk, *]."""

    def of_array(x):
        num_chunks = -(-x.shape[axis] // chunk)
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, num_chunks * chunk - x.shape[axis])
        padded = jnp.pad(x, padding, constant_values=fill)
        shape = (*x.shape[:axis], num_chunks, chunk, *x.shape[axis + 1 :])
        return jnp.moveaxis(padded.reshape(shape), axis, 0)

    return jax.tree.map(of_array, tree)


def join(tree, axis, num_tokens):
    """Undoes `split` and cuts its padding off: [T / chunk, ..., chunk, *] -> [..., T, *]."""

    def of_array(chunks):
        moved = jnp.moveaxis(chunks, 0, axis)
        shape = (*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
        return jax.lax.slice_in_dim(moved.reshape(shape), 0, num_tokens, axis=axis)

    return jax.tree.map(of_array, tree)
