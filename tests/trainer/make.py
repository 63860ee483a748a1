"""Small trajectories, batches and models for the trainer's tests."""

from __future__ import annotations

import numpy as np

from jaxrl_single import types
from jaxrl_single.data import packing
from jaxrl_single.models import api, config

VOCABULARY = 24


def trajectory(rng, *, ticket=0, turns=2, prompt=3, action=4, observation=2, **changes):
    """A finished episode: prompt, then `turns` actions with observations between."""
    mask = [False] * prompt
    turn_ids = [0] * prompt
    for turn in range(turns):
        mask += [True] * action
        turn_ids += [turn] * action
        if turn + 1 < turns:
            mask += [False] * observation
            turn_ids += [turn + 1] * observation
    mask = np.array(mask)
    length = len(mask)
    rewards = np.zeros(length, np.float32)
    reward = float(rng.integers(2))
    rewards[-1] = reward
    fields = {
        "run_id": "run",
        "ticket": ticket,
        "attempt": 0,
        "task_id": f"task/{ticket}",
        "group_id": ticket,
        "tokens": rng.integers(0, VOCABULARY, length).astype(np.int32),
        "action_mask": mask,
        "rollout_logprobs": np.where(mask, rng.uniform(-4, -0.5, length), 0).astype(np.float32),
        "policy_versions": np.where(mask, 0, types.NOT_SAMPLED).astype(np.int32),
        "turn_ids": np.array(turn_ids, np.int32),
        "rewards": rewards,
        "entropies": np.where(mask, rng.uniform(0, 3, length), 0).astype(np.float32),
        "segment_ids": np.ones(length, np.int32),
        "reward": reward,
        "terminated": True,
        "truncated": False,
    }
    made = types.Trajectory(**(fields | changes))
    types.validate(made)
    return made


def trajectories(number, *, seed=0):
    """Of several lengths, so that packing and denominators have something to get wrong."""
    rng = np.random.default_rng(seed)
    return [
        trajectory(
            rng,
            ticket=ticket,
            turns=int(rng.integers(1, 4)),
            prompt=int(rng.integers(1, 4)),
            action=int(rng.integers(1, 5)),
        )
        for ticket in range(number)
    ]


def pack(given, *, rows=8, micro=8, row_length=24, slots=None, on_limit="terminal"):
    return packing.pack(
        given,
        num_trajectories=slots or max(len(given), 1),
        row_length=row_length,
        rows_per_micro_batch=micro,
        row_buckets=(rows,),
        on_limit=on_limit,
    )


def model_config(size="tiny_moe"):
    return config.get(size, vocab_size=VOCABULARY)


def policy(size="tiny_moe"):
    return api.build_policy(model_config(size))


def critic(size="tiny_moe"):
    return api.build_critic(model_config(size))
