"""Rollouts of other systems -> the record format of `records`; of our own: `own_runs`.

From "trl": what a TRL `rollout_func` returns and `GRPOTrainer` keeps. Per completion:
  prompt_ids, completion_ids        prompts are optional; the text `prompt` may name the task
  logprobs | sampling_per_token_logps   of the sampler; a number or a list of one per token
  env_mask | tool_mask              1 on tokens of the model, 0 on those of tools; default all 1
  completion_mask                   0 on padding, which is cut off; default all 1
  old_per_token_logps, ref_per_token_logps   of the trainer before the update, of the reference
  reward | rewards | env_reward     a number; of lists the sum, without null and NaN

From "verl": rows of a `DataProto` (its `batch` and `non_tensor_batch`). Per response:
  responses, response_mask          the mask is 0 on tool tokens and on padding
  attention_mask, prompts           padding is cut off by the attention mask, if it is there
  rollout_log_probs, old_log_probs, ref_log_prob, values, entropys
  token_level_rewards | token_level_scores   per token; or reward | score, a number
  uid                               of the prompt: the group, and the task

From "slime": `Sample.to_dict()` of a rollout dump, or rows of its training data. Per sample:
  tokens, response_length           prompt and response in one list
  loss_mask | loss_masks            of the response; default all 1
  rollout_log_probs, log_probs, ref_log_probs, values   of the response
  reward | raw_reward | rewards     a number, or an object of which --reward-key names the entry
  group_index, index, status ("truncated" means not terminated), label, prompt

The input is JSON lines with one sample each, or JSON objects of columns ({"completion_ids": [[...],
...], ...}), or {"samples": [...]}. Tensors are first to be written with `.tolist()`; arrays of
slime's `.pt` files are lists already.

`policy_logprobs` are those that the trainer computed before its update (old_per_token_logps,
old_log_probs, log_probs), where the dump has them; else they are SET TO THE SAMPLER'S, as if the
policy had not changed since: all ratios are then 1. `add_fields` puts in your own.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_single import workdir
from jaxrl_single.lab import lines as lines_lib

Json = dict[str, Any]

_COLUMN_OF = {"trl": "completion_ids", "verl": "responses", "slime": "tokens"}


def samples_of(path: os.PathLike[str] | str, source: str) -> Iterator[Json]:
    """Single samples of a file of JSON lines of either kind.

    Raises:
      ValueError: a line is no JSON object; columns are of different lengths.
    """
    for number, text in lines_lib.numbered(path):
        if not text.strip():
            continue
        try:
            data = json.loads(text)
            yield from _samples(data, _COLUMN_OF[source])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def from_trl(sample: Json, number: int) -> Json:
    """A record of one TRL completion; `number` names it."""
    completion = sample["completion_ids"]
    real = sample.get("completion_mask") or [1] * len(completion)
    length = _length(real)
    prompt = sample.get("prompt_ids") or []
    model = sample.get("env_mask") or sample.get("tool_mask") or real
    mask = [a and b for a, b in zip(real, model, strict=False)]
    rollout = _required(sample, "logprobs", "sampling_per_token_logps")
    record = _Builder(len(prompt), length, mask)
    record.tokens("rollout_logprobs", [_scalar(entry) for entry in rollout])
    record.tokens("policy_logprobs", sample.get("old_per_token_logps"))
    record.tokens("ref_logprobs", sample.get("ref_per_token_logps"))
    rewards = _required(sample, "reward", "rewards", "env_reward")
    task = _given(sample, "task_id", json.dumps(sample.get("prompt") or prompt))
    return record.finished(
        id=_given(sample, "id", number),
        task_id=task,
        group_id=_given(sample, "group_id", task),
        reward=_sum(rewards) if isinstance(rewards, list) else _reward(rewards),
        tokens=[*prompt, *completion[:length]],
    )


def from_verl(sample: Json, number: int) -> Json:
    """A record of one row of a verl batch; `number` names it."""
    responses = sample["responses"]
    attention = sample.get("attention_mask")
    prompts = sample.get("prompts") or []
    attention = attention or [1] * (len(prompts) + len(responses))
    length = _length(attention[len(attention) - len(responses) :])
    prompt = [token for token, real in zip(prompts, attention, strict=False) if real]
    record = _Builder(len(prompt), length, _required(sample, "response_mask", "loss_mask"))
    record.tokens("rollout_logprobs", _required(sample, "rollout_log_probs", "old_log_probs"))
    record.tokens("policy_logprobs", sample.get("old_log_probs"))
    record.tokens("ref_logprobs", sample.get("ref_log_prob"))
    record.tokens("values", sample.get("values"))
    rewards = _given(sample, "token_level_rewards", sample.get("token_level_scores"))
    if rewards is not None:
        record.tokens("rewards", [_reward(reward) for reward in rewards], masked=False)
        reward = None
    else:
        reward = _reward(_required(sample, "reward", "score"))
    uid = _given(sample, "uid", number)
    return record.finished(
        id=_given(sample, "id", number),
        task_id=_given(sample, "task_id", uid),
        group_id=uid,
        reward=reward,
        tokens=[*prompt, *responses[:length]],
    )


def from_slime(sample: Json, number: int, *, reward_key: str = "") -> Json:
    """A record of one slime sample; `number` names it, `reward_key` chooses among its rewards."""
    tokens = sample["tokens"]
    length = _given(sample, "response_length", sample.get("response_lengths"))
    if length is None:
        raise ValueError("response_length is missing")
    mask = sample.get("loss_mask") or sample.get("loss_masks") or [1] * length
    if sample.get("remove_sample"):
        mask = [0] * length
    record = _Builder(len(tokens) - length, length, mask)
    record.tokens("rollout_logprobs", _required(sample, "rollout_log_probs"))
    record.tokens("policy_logprobs", sample.get("log_probs"))
    record.tokens("ref_logprobs", sample.get("ref_log_probs"))
    record.tokens("values", sample.get("values"))
    reward = _required(sample, "reward", "raw_reward", "rewards")
    if isinstance(reward, dict):
        if reward_key not in reward:
            raise ValueError(f"reward is one of {sorted(reward)}, name it with --reward-key")
        reward = reward[reward_key]
    group = _given(sample, "group_index", number)
    return record.finished(
        id=_given(sample, "index", number),
        task_id=group,
        group_id=group,
        reward=_reward(reward),
        tokens=tokens,
        terminated=sample.get("status") != "truncated",
    )


CONVERTERS: Mapping[str, Callable[..., Json]] = {
    "trl": from_trl,
    "verl": from_verl,
    "slime": from_slime,
}


def add_fields(records: Sequence[Json], path: os.PathLike[str] | str) -> None:
    """Puts fields of a file of JSON lines {"id", ...} into the records of the same id.

    Raises:
      ValueError: a line is no JSON object, or has no id, or that of no record.
    """
    by_id = {record["id"]: record for record in records}
    for number, text in lines_lib.numbered(path):
        if not text.strip():
            continue
        data = workdir.parse_line(text.encode(), pathlib.Path(path), number)
        if data.get("id") not in by_id:
            raise ValueError(f"{path}, line {number}: no record has the id {data.get('id')!r}")
        by_id[data["id"]].update(data)


class _Builder:
    """A record that grows field by field from lists over the response, behind a prompt."""

    def __init__(self, num_prompt: int, length: int, mask: list[int]):
        self._num_prompt, self._length = num_prompt, length
        self._mask = self._cut("the mask", mask)
        self._fields: Json = {"action_mask": [0] * num_prompt + [int(bool(x)) for x in self._mask]}

    def tokens(self, name: str, values: list | None, *, masked: bool = True) -> None:
        """Adds a field [T] from its values on the response; null on other tokens if `masked`."""
        if values is None:
            return
        values = self._cut(name, values)
        if masked:
            values = [x if counts else None for x, counts in zip(values, self._mask, strict=True)]
        self._fields[name] = [None] * self._num_prompt + values

    def finished(self, **facts: Any) -> Json:
        """The record, with the facts that are not None."""
        self._fields.setdefault("policy_logprobs", self._fields["rollout_logprobs"])
        given = {name: value for name, value in facts.items() if value is not None}
        return given | self._fields

    def _cut(self, name: str, values: list) -> list:
        if len(values) < self._length:
            raise ValueError(f"{name} has {len(values)} entries, the response {self._length}")
        return list(values[: self._length])


def _samples(data: Any, column: str) -> Iterator[Json]:
    if isinstance(data, dict) and isinstance(data.get("batch"), dict):
        data = {**data["batch"], **data.get("non_tensor_batch", {})}
    if isinstance(data, dict) and isinstance(data.get("samples"), list):
        data = data["samples"]
    if isinstance(data, list):
        for sample in data:
            yield from _samples(sample, column)
        return
    if not isinstance(data, dict) or not isinstance(data.get(column), list):
        raise ValueError(f"expected a JSON object with a list {column!r}")
    if not data[column] or not isinstance(data[column][0], list):
        yield data
        return
    size = len(data[column])
    columns = {key: values for key, values in data.items() if isinstance(values, list)}
    uneven = sorted(key for key, values in columns.items() if len(values) != size)
    if uneven:
        raise ValueError(f"{uneven} are not as long as {column!r}, which has {size} entries")
    for number in range(size):
        yield {key: values[number] for key, values in columns.items()}


def _length(mask: list) -> int:
    """Tokens up to the last one whose mask is not 0."""
    return max((place + 1 for place, counts in enumerate(mask) if counts), default=0)


def _required(sample: Json, *names: str) -> Any:
    for name in names:
        if sample.get(name) is not None:
            return sample[name]
    raise ValueError(f"{' or '.join(names)} is missing; there are {sorted(sample)}")


def _given(sample: Json, name: str, otherwise: Any) -> Any:
    """What a sample has under a name; `otherwise` if that is nothing or null."""
    found = sample.get(name)
    return otherwise if found is None else found


def _sum(rewards: list) -> float:
    """Of several reward functions; null and NaN are of one that does not apply."""
    known = [_reward(reward) for reward in rewards if reward is not None]
    known = [reward for reward in known if not np.isnan(reward)]
    if rewards and not known:
        raise ValueError("rewards holds no number")
    return float(np.sum(known))


def _reward(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"a reward is {value!r}, expected a number") from None


def _scalar(entry: Any) -> Any:
    """The sampled token's log-prob; some servers return a list of one per token."""
    return entry[0] if isinstance(entry, list) else entry
