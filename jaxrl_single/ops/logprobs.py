"""THE distribution over the next token, used by trainer and sampler alike.

`log_softmax(logits, temperature)` defines it. `token_logprobs` is the same distribution for many
known tokens at once, from hidden states, without ever holding [T, V] logits: they are made chunk by
chunk in the forward pass and made again in the backward pass (about 4/3 of the projection's work
against memory of V x T floats).
"""

import functools

import chex
import jax
import jax.numpy as jnp


def log_softmax(logits: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Log-probabilities of logits / temperature, float32.

    Args:
      logits: [..., V]; -inf forbids a token.
      temperature: > 0; a scalar, or broadcastable against [..., 1].
    """
    return jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)


def entropy(logprobs: jax.Array) -> jax.Array:
    """Entropy in nats of log-probabilities [..., V] over the full vocabulary, [...] float32."""
    possible = logprobs > -jnp.inf
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
    the token axis. Gradients flow to `hidden` and `unembedding`, from the log-probs only: entropies
    are stop-gradient. A token with cotangent 0 contributes exactly nothing to either gradient, even
    if its hidden state or temperature is not finite.

    Args:
      hidden: [..., T, D], the state from which each token is predicted.
      unembedding: [V, D].
      tokens: i32 [..., T]; an id outside 0..V-1 gives log-prob 0.
      temperature: float [..., T], > 0 wherever the result is used.
      chunk: tokens per row of which the logits exist at one time, > 0.

    Returns:
      logprobs, entropies: [..., T] float32; entropies in nats.

    Raises:
      ValueError: chunk is not positive.
    """
    if chunk <= 0:
        raise ValueError(f"token_logprobs: chunk is {chunk}, it must be a positive token count")
    chex.assert_equal_shape([tokens, temperature])
    chex.assert_shape(hidden, (*tokens.shape, unembedding.shape[-1]))
    return _token_logprobs(min(chunk, tokens.shape[-1]), hidden, unembedding, tokens, temperature)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _token_logprobs(chunk, hidden, unembedding, tokens, temperature):
    def one_chunk(arrays):
        chunk_hidden, chunk_tokens, chunk_temperature = arrays
        logprobs = _chunk_log_softmax(chunk_hidden, unembedding, chunk_temperature)
        return pick(logprobs, chunk_tokens), entropy(logprobs)

    axis = tokens.ndim - 1
    chunks = (
        _split(hidden, axis, chunk, fill=0),
        _split(tokens, axis, chunk, fill=0),
        _split(temperature, axis, chunk, fill=1),
    )
    logprobs, entropies = jax.lax.map(one_chunk, chunks)
    return _join(logprobs, axis, tokens.shape[axis]), _join(entropies, axis, tokens.shape[axis])


def _forward(chunk, hidden, unembedding, tokens, temperature):
    outputs = _token_logprobs(chunk, hidden, unembedding, tokens, temperature)
    return outputs, (hidden, unembedding, tokens, temperature)


def _backward(chunk, residuals, cotangents):
    hidden, unembedding, tokens, temperature = residuals
    cotangent = cotangents[0]  # that of the entropies is dropped: they are stop-gradient
    axis, dtype = tokens.ndim - 1, unembedding.dtype
    batch_and_token = tuple(range(tokens.ndim))

    def one_chunk(unembedding_gradient, arrays):
        chunk_hidden, chunk_tokens, chunk_temperature, chunk_cotangent = arrays
        probabilities = jnp.exp(_chunk_log_softmax(chunk_hidden, unembedding, chunk_temperature))
        score = _one_hot(chunk_tokens, unembedding.shape[0]) - probabilities
        logits_gradient = ((chunk_cotangent / chunk_temperature)[..., None] * score).astype(dtype)
        hidden_gradient = jnp.matmul(
            logits_gradient, unembedding, preferred_element_type=jnp.float32
        )
        unembedding_gradient += jnp.tensordot(
            logits_gradient,
            chunk_hidden,
            (batch_and_token, batch_and_token),
            preferred_element_type=jnp.float32,
        )
        return unembedding_gradient, hidden_gradient.astype(hidden.dtype)

    used = cotangent != 0
    chunks = (
        _split(jnp.where(used[..., None], hidden, 0), axis, chunk, fill=0),
        _split(tokens, axis, chunk, fill=0),
        _split(jnp.where(used, temperature, 1), axis, chunk, fill=1),
        _split(cotangent, axis, chunk, fill=0),
    )
    zeros = jnp.zeros(unembedding.shape, jnp.float32)
    unembedding_gradient, hidden_gradient = jax.lax.scan(one_chunk, zeros, chunks)
    hidden_gradient = _join(hidden_gradient, axis, tokens.shape[axis])
    return hidden_gradient, unembedding_gradient.astype(dtype), None, None


_token_logprobs.defvjp(_forward, _backward)


def _chunk_log_softmax(hidden, unembedding, temperature):
    logits = jnp.matmul(hidden, unembedding.T, preferred_element_type=jnp.float32)
    return log_softmax(logits, temperature[..., None])


def _one_hot(tokens, vocab_size):
    """Tokens [...] as bool [..., V]; all False for an id outside 0..V-1."""
    ids = jax.lax.broadcasted_iota(tokens.dtype, (*tokens.shape, vocab_size), tokens.ndim)
    return tokens[..., None] == ids


def _split(x, axis, chunk, *, fill):
    """Cuts axis T into the chunks of a scan: [..., T, *] -> [T / chunk, ..., chunk, *]."""
    num_chunks = -(-x.shape[axis] // chunk)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, num_chunks * chunk - x.shape[axis])
    padded = jnp.pad(x, padding, constant_values=fill)
    shape = (*x.shape[:axis], num_chunks, chunk, *x.shape[axis + 1 :])
    return jnp.moveaxis(padded.reshape(shape), axis, 0)


def _join(chunks, axis, num_tokens):
    """Undoes `_split` and cuts its padding off: [T / chunk, ..., chunk, *] -> [..., T, *]."""
    moved = jnp.moveaxis(chunks, 0, axis)
    shape = (*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
    return jax.lax.slice_in_dim(moved.reshape(shape), 0, num_tokens, axis=axis)
