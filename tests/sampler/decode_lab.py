"""A chunk of decode steps without an engine: every slot has its pages in one piece."""

import dataclasses

import jax
import numpy as np
import sampler_lab as lab

from jaxrl_single import types
from jaxrl_single.sampler import decode, restrict

NUM_SLOTS, NUM_STEPS, PAGE_SIZE, SLOT_PAGES, STOP_WIDTH = 6, 8, 8, 4, 3
PROMPTS = [[1], [2, 3], [4, 5, 6], [7], [8, 9, 10, 11], [12]]


def rows_of(prompts=PROMPTS, requests=None, **changes) -> decode.Rows:
    """Rows of new turns that feed the prompts; requests (by slot) give the limits."""
    tokens = np.zeros((NUM_STEPS, NUM_SLOTS), np.int32)
    for slot, prompt in enumerate(prompts):
        tokens[: len(prompt), slot] = prompt
    limits = restrict.Limits.none(NUM_SLOTS)
    temperatures = np.ones(NUM_SLOTS, np.float32)
    for slot, request in (requests or {}).items():
        limits.put(slot, request)
        temperatures[slot] = request.temperature or 1
    pages = np.arange(NUM_SLOTS * SLOT_PAGES, dtype=np.int32)
    rows = decode.Rows(
        tokens=tokens,
        num_known=np.array([len(prompt) for prompt in prompts], np.int32),
        positions=np.zeros(NUM_SLOTS, np.int32),
        active=np.ones(NUM_SLOTS, bool),
        budgets=np.full(NUM_SLOTS, 100, np.int32),
        temperatures=temperatures,
        seeds=np.full(NUM_SLOTS, 11, np.uint32),
        tickets=np.arange(NUM_SLOTS, dtype=np.uint32),
        attempts=np.zeros(NUM_SLOTS, np.uint32),
        turns=np.zeros(NUM_SLOTS, np.uint32),
        indices=np.zeros(NUM_SLOTS, np.uint32),
        stop_tokens=np.full((NUM_SLOTS, STOP_WIDTH), decode.NO_TOKEN, np.int32),
        forced=np.full((NUM_STEPS, NUM_SLOTS), decode.NO_TOKEN, np.int32),
        wanted=np.ones(NUM_SLOTS, bool),
        limits=limits,
        table=pages.reshape(NUM_SLOTS, SLOT_PAGES),
        owner=pages // SLOT_PAGES,
        index=pages % SLOT_PAGES,
    )
    return dataclasses.replace(rows, **changes)


def chunk(rows: decode.Rows, record=types.RECORD_NOTHING, size="tiny_moe") -> decode.Sampled:
    """One chunk from an empty cache, as numpy arrays."""
    policy = lab.policy_of(size)
    _, sampled = decode.decode_chunk(
        policy,
        policy.serving(lab.params_of(size, 0)),
        policy.init_cache(NUM_SLOTS * SLOT_PAGES, PAGE_SIZE),
        rows,
        num_steps=NUM_STEPS,
        record=record,
    )
    return jax.device_get(sampled)


def of_slot(sampled: decode.Sampled, slot: int, prompts=PROMPTS) -> dict[str, np.ndarray]:
    """What the slot sampled: each field of `Sampled` that has a row for every token."""
    steps = slice(len(prompts[slot]) - 1, len(prompts[slot]) - 1 + sampled.counts[slot])
    names = ("tokens", "logprobs", "untruncated_logprobs", "entropies")
    found = {name: getattr(sampled, name)[steps, slot] for name in names}
    return found | {name: array[steps, slot] for name, array in sampled.recorded.items()}
