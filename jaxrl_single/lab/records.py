"""The record format of the scorer: a file of JSON lines, one trajectory a line, from any system.

T is the number of tokens of the trajectory, prompt and observations included or not, as you like:
only tokens whose mask is 1 count. Entries of lists [T] may be null where the mask is 0. Log-probs
are natural logs of the probability of the token at the same place, given all that precedes it.
What is absent or null has not been recorded. Further fields are passed over.

Always:
  id                     string or integer, unique in the file
  task_id                string or integer; the lines of one task share what is kept per task
  reward                 number, of the whole trajectory; may be left out when `rewards` is there
  action_mask [T]        1 or true where the policy sampled the token
  policy_logprobs [T]    under the policy that is to be updated
  rollout_logprobs [T]   as recorded by the sampler, temperature and truncation included

Where the algorithm reads them:
  rewards [T]            numbers that add up to `reward`; one on an observation goes to the nearest
                         action token before it. Default: all of `reward` on the last action token
  values [T]             critic's value of the prefix before the token
  terminated             false: cut off from outside, `bootstrap_value` stands for the rest.
                         Default true
  bootstrap_value        value after the last token; default 0, ignored when terminated
  proximal_logprobs [T]  recomputed by the trainer before its first update on the batch. Default:
                         `policy_logprobs`, as if this were that update
  ref_logprobs [T]       under the frozen reference policy
  entropies [T]          of the sampler over the whole vocabulary, nats
  policy_entropies [T]   of the policy, nats; for the entropy bonus only
  preference             probability (SPPO) or score (GPO) that the response is preferred
  prompt_value           value of the task's prompt
  group_id               string or integer; lines that share one are compared with one another.
                         Default: the lines of a task are a group
  turn_ids [T]           0, 1, ... never falling. Default: a turn begins with each run of actions
  state_key [turns]      any JSON value per turn: the environment's state in which it was taken
  parent_id              the `id` from which it was forked; null for one that was not
  fork_index             its first own token, counted from 0. What comes before is a copy of the
                         parent's tokens: context here, trained and counted with the parent alone
  gold_logprobs [boundaries]   mean log-prob of the right answer, at the prompt and after each
                         turn that brought a result
  aux_policy_logprobs, aux_rollout_logprobs [T][M]     of M further draws of the sampler
  topk_policy_logprobs, topk_rollout_logprobs [T][K]   of the sampler's K likeliest tokens
  full_policy_logprobs, full_rollout_logprobs [T][V]   of the whole vocabulary; in both pairs a
                         null or -Infinity of the sampler means that the token was impossible
  tokens [T], policy_versions [T], topk_tokens [T][K]  integers; checked, and read by nobody
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxrl_single import types
from jaxrl_single.lab import fields as fields_lib
from jaxrl_single.lab import lines as lines_lib

ALWAYS = ("id", "task_id", "reward", "action_mask", "policy_logprobs", "rollout_logprobs")


class BadRecord(ValueError):
    """A line of the file is not what it should be; the message is for people."""

    def __init__(self, line: int, problem: str):
        super().__init__(f"line {line}: {problem}")


@dataclasses.dataclass(frozen=True)
class Record:
    """One line, checked.

    Attributes:
      line: its number in the file, from 1.
      fields: what is there, by name. Lists are float64 or integer arrays, 0 (in rows: NaN) where
        the mask is 0; `rewards` is always there, and on action tokens only.
    """

    line: int
    fields: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def length(self) -> int:
        return len(self.fields["action_mask"])

    @property
    def num_actions(self) -> int:
        return int(self.fields["action_mask"].sum())

    @property
    def turns(self) -> np.ndarray:
        """turn_ids [T]; by default each run of action tokens ends a turn."""
        if "turn_ids" in self.fields:
            return self.fields["turn_ids"]
        return _turns(self.fields["action_mask"])


def read(path: os.PathLike[str] | str) -> list[Record]:
    """The records of a file, in order.

    Raises:
      BadRecord: a line is wrong; the first one.
      OSError: the file cannot be read.
    """
    return parse_lines(lines_lib.numbered(path))


def parse_lines(lines: Iterable[tuple[int, str]]) -> list[Record]:
    """Records from pairs of line number and text; blank lines are passed over."""
    found: list[Record] = []
    line_of: dict[Any, int] = {}
    for number, text in lines:
        if not text.strip():
            continue
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRecord(number, f"this is no JSON: {error}") from None
        record = parse(number, data)
        if record["id"] in line_of:
            raise BadRecord(
                number, f"id {record['id']!r} is that of line {line_of[record['id']]} already"
            )
        line_of[record["id"]] = number
        found.append(record)
    if not found:
        raise BadRecord(1, "the file holds no trajectory")
    return found


def parse(line: int, data: Any) -> Record:
    """Checks one line: fields that are always needed, shapes, types and values of all others."""
    if not isinstance(data, dict):
        raise BadRecord(
            line, f"expected a JSON object, one trajectory, got {fields_lib.short(data)}"
        )
    given = {name: data[name] for name in fields_lib.READERS if data.get(name) is not None}
    for name in ALWAYS:
        if name not in given and not (name == "reward" and "rewards" in given):
            raise BadRecord(line, f"{name} is missing; every trajectory needs {', '.join(ALWAYS)}")
    fields: dict[str, Any] = {}
    try:
        sampled = fields_lib.mask(given["action_mask"])
        own = sampled & (np.arange(len(sampled)) >= _fork_index(given, sampled))
        for name, value in given.items():
            fields[name] = fields_lib.READERS[name](name, value, own)
        fields["action_mask"] = own
        if "parent_id" in given:
            fields.setdefault("turn_ids", _turns(sampled))
        _check_rows(fields)
        fields["reward"], fields["rewards"] = _rewards(fields, sampled)
    except (ValueError, OverflowError) as error:
        raise BadRecord(line, str(error)) from None
    return Record(line, fields)


def _turns(mask: np.ndarray) -> np.ndarray:
    """turn_ids [T] where each run of action tokens ends a turn."""
    starts = mask & ~np.append(False, mask[:-1])
    return np.cumsum(starts) - mask


def _fork_index(given: Mapping[str, Any], mask: np.ndarray) -> int:
    """The first own token; all are its own where nothing was forked."""
    if "parent_id" not in given:
        return 0
    if "fork_index" not in given:
        raise ValueError("fork_index is missing; a line with a parent_id says its first own token")
    return fields_lib.READERS["fork_index"]("fork_index", given["fork_index"], mask)


def _check_rows(fields: dict[str, Any]) -> None:
    """Rows of policy and sampler: of one shape, and log-probs wherever the token is possible."""
    for kind in ("aux", "topk", "full"):
        names = [f"{kind}_{whose}_logprobs" for whose in ("policy", "rollout")]
        held = [name for name in (*names, f"{kind}_tokens") if name in fields]
        widths = {name: fields[name].shape[1] for name in held}
        if len(set(widths.values())) > 1:
            raise ValueError(f"rows must be equally long, and their lengths are {widths}")
        impossible = np.False_
        if names[1] in fields and kind != "aux":
            impossible = fields[names[1]] == -np.inf
        for name in names:
            if name in fields:
                fields[name] = _rows(name, fields[name], fields["action_mask"], impossible)


def _rows(name: str, array: np.ndarray, mask: np.ndarray, impossible: np.ndarray) -> np.ndarray:
    bad = mask[:, None] & ~(fields_lib.sampled(array) | impossible)
    if bad.any():
        at, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name}[{at}][{column}] is {array[at, column]}, expected a log-probability, finite "
            "and <= 0"
        )
    return np.where(impossible & np.isnan(array), -np.inf, array)


def _rewards(fields: dict[str, Any], sampled: np.ndarray) -> tuple[float, np.ndarray]:
    """The reward of the trajectory, and where it lies; those of copied tokens are the parent's."""
    mask = fields["action_mask"]
    if "rewards" in fields:
        try:
            folded = types.fold_rewards(fields["rewards"], sampled)
        except types.InvalidTrajectory as error:
            raise ValueError(f"rewards: {error}") from None
        total = float(folded.sum())
        reward = fields.get("reward", total)
        if not math.isclose(reward, total, rel_tol=1e-5, abs_tol=1e-6):
            raise ValueError(f"reward is {reward}, but rewards add up to {total}; leave one out")
        return reward, np.where(mask, folded, 0.0)
    rewards = np.zeros(len(mask))
    if mask.any():
        rewards[np.flatnonzero(mask)[-1]] = fields["reward"]
    return fields["reward"], rewards
