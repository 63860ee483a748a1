"""One small policy of each kind, one engine shape: few programs to compile."""

import asyncio
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_single import wire
from jaxrl_single.models import api, sizes
from jaxrl_single.ops import logprobs as logprob_ops
from jaxrl_single.sampler import local_client

VOCAB_SIZE = 24
SHAPE = {
    "num_slots": 8,
    "cache_length": 64,
    "decode_chunk": 4,
    "page_size": 16,
    "prefill_pages": (1, 2),
    "cache_sizes": (),
    "seed": 11,
}


@functools.cache
def policy_of(size: str) -> api.Policy:
    return api.build_policy(sizes.get(size, vocab_size=VOCAB_SIZE))


@functools.cache
def params_of(size: str, seed: int) -> api.Params:
    """Spread out, so that the distributions are neither uniform nor certain."""
    return jax.tree.map(lambda leaf: 1.5 * leaf, policy_of(size).init(jax.random.key(seed)))


@functools.partial(jax.jit, static_argnames="policy")
def _full_forward(policy, params, tokens, temperature):
    length = tokens.shape[1]
    hidden = policy.hidden(params, tokens, jnp.arange(length)[None], jnp.ones((1, length), int))
    return logprob_ops.log_softmax(hidden @ policy.unembedding(params).T, temperature)[0]


def rescore(size, weights, tokens, temperature) -> np.ndarray:
    """[T, V] log-probs by the training path: row t is of tokens[t]; row 0 is empty."""
    padded = np.zeros((1, SHAPE["cache_length"]), np.int32)
    padded[0, : len(tokens)] = tokens
    rows = _full_forward(policy_of(size), params_of(size, weights), padded, temperature)
    return np.concatenate([np.full((1, VOCAB_SIZE), np.nan), np.asarray(rows)])[: len(tokens)]


def request(session="s", tokens=(1, 2, 3), **changes) -> wire.Request:
    fields = {
        "ticket": 0,
        "attempt": 0,
        "turn": 0,
        "max_new_tokens": 6,
        "stop_token_ids": (),
        "temperature": 1.0,
    }
    return wire.Request(session=session, tokens=list(tokens), **(fields | changes))


def run(engine, *futures):
    """Steps until all are done; returns their results."""
    for _ in range(1000):
        if all(future.done() for future in futures):
            return [future.result() for future in futures]
        engine.step()
    raise AssertionError("requests were not answered within 1000 steps")


def numbers(answer: wire.Completion) -> wire.Completion:
    """The answer without what tells of the cache, which depends on the other sessions."""
    return dataclasses.replace(answer, num_cached_tokens=0)


def play(engine, ticket, *, prompt, turns=3, session=None, temperature=1.0):
    """An episode with made-up observations; returns (tokens, [(start, completion), ...]).

    A session that is named is kept, else it is released at the end.
    """
    rng = np.random.default_rng(ticket)
    tokens, answers = list(prompt), []
    for turn in range(turns):
        asked = request(
            session or f"episode {ticket}",
            tokens,
            ticket=ticket,
            turn=turn,
            max_new_tokens=int(rng.integers(3, 8)),
            temperature=temperature,
        )
        (answer,) = run(engine, engine.submit(asked))
        answers.append((len(tokens), numbers(answer)))
        tokens += answer.tokens + rng.integers(0, VOCAB_SIZE, size=rng.integers(1, 7)).tolist()
    if session is None:
        engine.release(f"episode {ticket}")
    return tokens, answers


def play_together(engine, prompts, *, turns=3, **changes):
    """Episodes of these prompts side by side, ticket i for prompt i; the answers of each."""
    client = local_client.InlineClient(engine)

    async def episode(ticket, prompt):
        rng = np.random.default_rng(ticket)
        tokens, answers = list(prompt), []
        for turn in range(turns):
            asked = {"ticket": ticket, "turn": turn, "max_new_tokens": int(rng.integers(3, 14))}
            answer = await client.generate(request(f"e{ticket}", tokens, **(asked | changes)))
            answers.append(answer)
            tokens += answer.tokens + rng.integers(0, VOCAB_SIZE, size=turn + 1).tolist()
        await client.release(f"e{ticket}")
        return answers

    async def all_episodes():
        return await asyncio.gather(*(episode(i, prompt) for i, prompt in enumerate(prompts)))

    return asyncio.run(all_episodes())


def prompts_of(lengths, seed=0):
    """Random prompts."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB_SIZE, size=length).tolist() for length in lengths]
