"""What an algorithm needs of the records, and whether they hold it."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_single.algorithms import parts as parts_lib
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.lab.records import BadRecord, Record

# By the name of an array that a part may read: the field of a record that it is made of, and what
# that must be. Arrays that are not here are made of what every record has, or have a default.
NEEDED = {
    "values": ("values", "the critic's value of the prefix before each action token"),
    "entropies": ("entropies", "the sampler's entropy at each action token, nats"),
    "policy_entropies": ("policy_entropies", "the policy's entropy at each action token, nats"),
    "ref_logprobs": ("ref_logprobs", "log-probs under the frozen reference policy"),
    "preference": ("preference", "how much the response is preferred"),
    "prompt_value": ("prompt_value", "the value of the task's prompt"),
    "state_key": ("state_key", "the environment's state in which each turn was taken"),
    "gold_logprobs": ("gold_logprobs", "mean log-prob of the right answer at each boundary"),
    "aux_policy_logprobs": ("aux_policy_logprobs", "rows of M log-probs of further draws"),
    "aux_rollout_logprobs": ("aux_rollout_logprobs", "rows of M log-probs of further draws"),
    "topk_policy_logprobs": ("topk_policy_logprobs", "rows of K log-probs"),
    "topk_rollout_logprobs": ("topk_rollout_logprobs", "rows of K log-probs"),
    "full_policy_logprobs": ("full_policy_logprobs", "rows of log-probs of all tokens"),
    "full_rollout_logprobs": ("full_rollout_logprobs", "rows of log-probs of all tokens"),
}
ROWS = tuple(name for name in NEEDED if name.partition("_")[0] in ("aux", "topk", "full"))


def check(algorithm: row_lib.Algorithm, records: Sequence[Record]) -> None:
    """Raises BadRecord at the first line that the algorithm cannot be applied to."""
    for name, (field, meaning) in NEEDED.items():
        wanted = _wanted(algorithm, name)
        for record in records if wanted else ():
            if field not in record:
                raise BadRecord(record.line, f"{field} is missing; {wanted} reads it: {meaning}")
    _check_empty(records)
    if "turn_ids" in algorithm.reads:
        _check_turns(algorithm, records)
    for name in ROWS:
        _check_widths(name, _wanted(algorithm, name), records)
    if "group" in algorithm.reads:
        _check_groups(_wanted(algorithm, "group"), records)
    if "parent" in algorithm.reads:
        _check_forks(_wanted(algorithm, "parent"), records)
    for field, part in row_lib.each_part(algorithm):
        special = _SPECIAL.get(part.chosen.__name__)
        if special is not None:
            special(_named(algorithm, field, part), records)


def _named(algorithm: row_lib.Algorithm, field: str, part: parts_lib.Part) -> str:
    return f"algorithm {algorithm.name!r}, {field} ({part.chosen.__name__}),"


def _wanted(algorithm: row_lib.Algorithm, array: str) -> str:
    """The part that reads an array, in words; "" if none does."""
    for field, part in row_lib.each_part(algorithm):
        if array in part.reads:
            return _named(algorithm, field, part)
    return ""


def _check_empty(records: Sequence[Record]) -> None:
    """A trajectory without actions has no loss, and its reward would still move the baselines."""
    for record in records:
        if not record.num_actions:
            copies = " of its own; all are copies of its parent's" if "parent_id" in record else ""
            raise BadRecord(
                record.line,
                f"action_mask marks no token{copies}, so there is nothing to train; leave the line "
                "out",
            )


def _check_turns(algorithm: row_lib.Algorithm, records: Sequence[Record]) -> None:
    for record in records:
        turns = record.turns[record["action_mask"]]
        num_turns = int(turns.max(initial=-1)) + 1
        if "state_key" in algorithm.reads and len(record["state_key"]) != num_turns:
            raise BadRecord(
                record.line,
                f"state_key has {len(record['state_key'])} entries for {num_turns} turns; "
                f"{_wanted(algorithm, 'state_key')} reads one per turn (see turn_ids)",
            )
        if "gold_logprobs" in algorithm.reads and len(record["gold_logprobs"]) > num_turns + 1:
            raise BadRecord(
                record.line,
                f"gold_logprobs has {len(record['gold_logprobs'])} boundaries for {num_turns} "
                f"turns; {_wanted(algorithm, 'gold_logprobs')} reads at most one more than turns",
            )


def _check_widths(field: str, wanted: str, records: Sequence[Record]) -> None:
    first = next((record for record in records if record.num_actions), None)
    for record in records if wanted and first else ():
        width, expected = record[field].shape[1], first[field].shape[1]
        if record.num_actions and width != expected:
            raise BadRecord(
                record.line,
                f"{field} has rows of {width} numbers and line {first.line} rows of {expected}; "
                f"{wanted} needs one length",
            )


def _check_forks(wanted: str, records: Sequence[Record]) -> None:
    ids = {record["id"] for record in records}
    for record in records:
        if "parent_id" not in record:
            continue
        if record["parent_id"] not in ids or record["parent_id"] == record["id"]:
            raise BadRecord(
                record.line,
                f"parent_id {record['parent_id']!r} is not the id of another line; {wanted} "
                "compares a fork with its parent",
            )
    if not any("parent_id" in record for record in records):
        raise BadRecord(
            records[0].line,
            f"parent_id is missing, here and everywhere; {wanted} compares forks of a trajectory",
        )


def group_of(record: Record) -> tuple[str, Any]:
    """What the lines of its group share: group_id, or the task where no group was recorded."""
    field = "group_id" if "group_id" in record else "task_id"
    return field, record[field]


def _check_groups(wanted: str, records: Sequence[Record]) -> None:
    if len({group_of(record) for record in records}) == len(records):
        field, value = group_of(records[0])
        raise BadRecord(
            records[0].line,
            f"{field} {value!r} is that of no other line, and so it is with every line; {wanted} "
            "compares the lines of a group, which share a group_id or a task_id",
        )


def _no_single_groups(wanted: str, records: Sequence[Record]) -> None:
    sizes = collections.Counter(group_of(record) for record in records)
    for record in records:
        field, value = group_of(record)
        if sizes[field, value] == 1:
            raise BadRecord(
                record.line,
                f"{field} {value!r} is that of no other line; {wanted} compares a trajectory with "
                "the others of its group",
            )


def _two_draws(wanted: str, records: Sequence[Record]) -> None:
    for record in records:
        width = record["aux_rollout_logprobs"].shape[1]
        if record.num_actions and width < 2:
            raise BadRecord(
                record.line,
                f"aux_rollout_logprobs has {width} draw per token; {wanted} leaves one out and "
                "needs at least 2",
            )


def _within(field: str, low: float, high: float) -> Callable[[str, Sequence[Record]], None]:
    def check_field(wanted: str, records: Sequence[Record]) -> None:
        for record in records:
            if not low <= record[field] <= high:
                raise BadRecord(
                    record.line,
                    f"{field} is {record[field]}; {wanted} needs one from {low} to {high}",
                )

    return check_field


_SPECIAL: dict[str, Callable[[str, Sequence[Record]], None]] = {
    "leave_one_out": _no_single_groups,
    "sequence_mc": _two_draws,
    "spo": _within("reward", 0.0, 1.0),
    "sppo": _within("preference", 0.0, 1.0),
}
