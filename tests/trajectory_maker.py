"""Trajectories for tests: small, valid, and different from one another."""

import numpy as np

from jaxrl_single import types


def make_trajectory(ticket=0, *, run_id="run-a", length=6, seed=0, **changes):
    """Two prompt tokens, then an action, an observation token, and an action to the end."""
    rng = np.random.default_rng([seed, ticket])
    mask = np.ones(length, bool)
    mask[:2] = False
    if length > 4:
        mask[3] = False
    fields = {
        "run_id": run_id,
        "ticket": ticket,
        "attempt": 0,
        "task_id": f"calculator/train/{ticket}",
        "tokens": rng.integers(0, 50, length, np.int32),
        "action_mask": mask,
        # What lies under the mask is garbage on purpose.
        "rollout_logprobs": np.where(mask, -rng.random(length), np.nan).astype(np.float32),
        "policy_versions": np.where(mask, 3, types.NOT_SAMPLED).astype(np.int32),
        "turn_ids": np.minimum(np.arange(length) // 3, 1).astype(np.int32),
        "rewards": np.zeros(length, np.float32),
        "entropies": rng.random(length).astype(np.float32),
        "segment_ids": np.ones(length, np.int32),
        "reward": 1.0,
        "terminated": True,
        "truncated": False,
        "success": True,
        "env": "calculator",
        "finish_reasons": ("stop", "stop"),
        "timings": {"total": 0.25},
        "messages": ({"role": "user", "content": "1+2"}, {"role": "assistant", "content": "3"}),
    }
    return types.Trajectory(**{**fields, **changes})


def recorded_rows(num_actions, *, draws=2, likeliest=3, vocab_size=5, seed=0):
    """Arrays of types.ACTION_FIELDS by name; one entry of the whole rows is impossible."""
    rng = np.random.default_rng(seed)
    widths = types.Record(num_aux=draws, topk=likeliest, full=True).widths(vocab_size)
    rows = {
        name: rng.integers(0, vocab_size, (num_actions, width), np.int32)
        if name.endswith("_tokens")
        else -rng.random((num_actions, width), np.float32)
        for name, width in widths.items()
    }
    rows["full_logprobs"][0, 0] = -np.inf
    return rows


def routing(num_tokens, *, layers=3, chosen=2, experts=5, seed=0):
    """expert_ids as a sampler records them: the last token was not read."""
    rng = np.random.default_rng(seed)
    ids = rng.permuted(np.tile(np.arange(experts), (num_tokens, layers, 1)), axis=-1)
    ids = ids[:, :, :chosen].astype(np.int16)
    ids[-1] = types.UNKNOWN_EXPERT
    return ids


def make_error(ticket=0, **changes):
    """An episode that failed before its first token."""
    empty = {name: np.zeros(0, dtype) for name, dtype in types.TOKEN_FIELDS.items()}
    error = types.EpisodeError("env", "ValueError: no such tool\nTraceback ...")
    fields = {"reward": None, "terminated": False, "success": None, "error": error, "messages": ()}
    return make_trajectory(ticket, **{**empty, **fields, "finish_reasons": (), **changes})


def assert_same(left, right):
    """Field by field, arrays bit for bit."""
    for name in types.Trajectory.__dataclass_fields__:
        a, b = getattr(left, name), getattr(right, name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, name
            assert a.tobytes() == b.tobytes(), name
        else:
            assert a == b, name
