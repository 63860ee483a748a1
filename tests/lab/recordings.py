"""Records for the scorer's tests: every field is there, and the log-probs belong together."""

import json

import numpy as np


def make_records(seed=0):
    """Six trajectories of two groups and three tasks; 2 was forked from 0, and 5 was cut off."""
    rng = np.random.default_rng(seed)
    masks = ["011011", "0110", "01101", "110110", "0011", "1101"]
    spread = [1.5, 0.02, 0.6, 0.03, 1.0, 0.5]  # how far the policy has moved since
    records = []
    for number, text in enumerate(masks):
        mask = np.array([c == "1" for c in text])
        record = _random_rows(rng, mask, spread[number])
        record |= {
            "id": f"t{number}",
            "task_id": "abc"[number % 3],
            "group_id": number // 3,
            "action_mask": mask.astype(int).tolist(),
            "values": nulled(rng.normal(size=len(mask)), mask),
            "entropies": nulled(rng.exponential(size=len(mask)), mask),
            "policy_entropies": nulled(rng.exponential(size=len(mask)), mask),
            "reward": [1.0, 0.0, 0.5, 0.0, 1.0, 0.25][number],
            "preference": float(rng.random()),
            "prompt_value": float(rng.normal()),
        }
        num_turns = int(np.sum(np.diff(mask, prepend=False) & mask))
        record["state_key"] = [{"at": int(x)} for x in rng.integers(0, 3, num_turns)]
        record["gold_logprobs"] = (-rng.exponential(size=num_turns)).tolist()
        records.append(record)
    records[2] |= {"parent_id": "t0", "fork_index": 3}
    records[5] |= {"terminated": False, "bootstrap_value": 0.4}
    records[3] |= {"reward": 0.75, "rewards": [0.5, None, None, 0, 0, 0.25]}
    return records


def _random_rows(rng, mask, spread):
    """Log-probs of a vocabulary of 4, of the sampled tokens, 2 draws and the 2 likeliest."""
    length = len(mask)
    rollout = log_softmax(rng.normal(size=(length, 4)))
    policy, proximal, reference = (
        log_softmax(rollout + scale * rng.normal(size=(length, 4)))
        for scale in (spread, 0.3 * spread, 0.5)
    )
    tokens = np.array([rng.choice(4, p=np.exp(row)) for row in rollout])
    draws = np.stack([rng.choice(4, size=2, p=np.exp(row)) for row in rollout])
    likeliest = np.argsort(-rollout, axis=1)[:, :2]
    at = np.arange(length)
    return {
        "tokens": tokens.tolist(),
        "policy_logprobs": nulled(policy[at, tokens], mask),
        "rollout_logprobs": nulled(rollout[at, tokens], mask),
        "proximal_logprobs": nulled(proximal[at, tokens], mask),
        "ref_logprobs": nulled(reference[at, tokens], mask),
        "aux_policy_logprobs": nulled(np.take_along_axis(policy, draws, 1), mask),
        "aux_rollout_logprobs": nulled(np.take_along_axis(rollout, draws, 1), mask),
        "topk_policy_logprobs": nulled(np.take_along_axis(policy, likeliest, 1), mask),
        "topk_rollout_logprobs": nulled(np.take_along_axis(rollout, likeliest, 1), mask),
        "full_policy_logprobs": nulled(policy, mask),
        "full_rollout_logprobs": nulled(rollout, mask),
    }


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def nulled(array, mask):
    """As JSON, null where the mask is 0."""
    return [x if counts else None for x, counts in zip(array.tolist(), mask, strict=True)]


def simple(number, policy, rollout, **fields):
    """A record of probabilities, all of them of action tokens unless there is a mask."""
    return {
        "id": number,
        "task_id": number,
        "reward": 0.0,
        "action_mask": [1] * len(policy),
        "policy_logprobs": [None if p is None else float(np.log(p)) for p in policy],
        "rollout_logprobs": [None if p is None else float(np.log(p)) for p in rollout],
    } | fields


def padded(record, length):
    """A record with tokens at its end that mean nothing."""
    missing = length - len(record["action_mask"])
    lists = {
        key: value + ([0] if key == "action_mask" else [None]) * missing
        for key, value in record.items()
        if isinstance(value, list) and key not in ("state_key", "gold_logprobs")
    }
    return record | lists


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
