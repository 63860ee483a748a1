"""What an algorithm needs of a file, and in which words a file without it is refused."""

import json

import pytest

from jaxrl_single.algorithms import arrays, table
from jaxrl_single.lab import records, requirements
from tests.lab import recordings


def check(name, changes, *, settings=None, everywhere=False):
    """Checks the recordings for a row, with changes on line 2 (or everywhere)."""
    data = recordings.make_records()
    for number, record in enumerate(data):
        if everywhere or number == 1:
            record.update(changes)
    lines = map(json.dumps, data)
    found = records.parse_lines(enumerate(lines, start=1))
    requirements.check(table.get(name, settings or {}), found)


def test_the_recordings_suffice_for_every_row():
    for name in table.TABLE:
        check(name, {})


def test_every_array_that_a_part_reads_is_known():
    """Else a file without it would fail inside the mathematics."""
    defaulted = {
        "rewards", "action_mask", "trajectory_index", "reward", "valid", "task", "turn_ids",
        "token_index", "log_ratio", "engine_log_ratio", "bootstrap_values", "parent", "fork_index",
        "num_boundaries", "policy_logprobs", "rollout_logprobs", "proximal_logprobs", "advantages",
        "keep", "loss_mask", "group", "trajectory_lengths", "denominator", "num_trajectories",
    }  # fmt: skip
    known = defaulted | set(requirements.NEEDED)
    assert known >= {f for f in arrays.AdvantageArrays.__dataclass_fields__}
    assert known >= {f for f in arrays.PolicyArrays.__dataclass_fields__}
    for row in table.TABLE.values():
        assert known >= row.reads, row.name


@pytest.mark.parametrize(
    ("name", "field", "part"),
    [
        ("sao", "values", r"advantage \(critic_gae\)"),
        ("estr", "entropies", r"keep_rule \(estr\)"),
        ("rlef", "ref_logprobs", r"terms.reference_kl \(reference_kl\)"),
        ("klpo", "aux_rollout_logprobs", r"objective \(token_mc\)"),
        ("trm", "full_policy_logprobs", r"keep_rule \(trm\)"),
        ("sppo", "preference", r"objective \(sppo\)"),
        ("trace", "gold_logprobs", r"advantage \(trace\)"),
        ("gigrpo", "state_key", r"advantage \(gigrpo\)"),
        ("bellman_bpo_exact", "prompt_value", r"advantage \(reward_minus_prompt_value\)"),
    ],
)
def test_a_missing_field(name, field, part):
    message = f"^line 2: {field} is missing; algorithm '{name}', {part}, reads it: "
    with pytest.raises(records.BadRecord, match=message):
        check(name, {field: None})


def test_lines_of_a_task_are_a_group_where_no_group_was_recorded():
    data = recordings.make_records()
    for number, record in enumerate(data):
        del record["group_id"]
        record["task_id"] = number // 2
    found = records.parse_lines(enumerate(map(json.dumps, data), start=1))
    requirements.check(table.get("rloo"), found)
    assert [requirements.group_of(record)[1] for record in found] == [0, 0, 1, 1, 2, 2]
    for number, record in enumerate(data):
        record["task_id"] = number
    found = records.parse_lines(enumerate(map(json.dumps, data), start=1))
    with pytest.raises(records.BadRecord, match=r"task_id 0 is that of no other line.*'grpo'"):
        requirements.check(table.get("grpo"), found)


def test_a_kernel_needs_its_own_rows_only():
    check("klpo", {"aux_policy_logprobs": None}, settings={"objective.kernel": "binary"})
    with pytest.raises(records.BadRecord, match="line 2: topk_policy_logprobs is missing"):
        check("klpo", {"topk_policy_logprobs": None}, settings={"objective.kernel": "topk"})


NOTHING = {
    "action_mask": [0, 0, 0, 0],
    "aux_policy_logprobs": None,
    "aux_rollout_logprobs": None,
    "topk_policy_logprobs": None,
    "topk_rollout_logprobs": None,
}
ONE_DRAW = {f"aux_{whose}_logprobs": [None, [-1], [-1], None] for whose in ("policy", "rollout")}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("rloo", {"group_id": "alone"}, "group_id 'alone' is that of no other line.*leave_one_out"),
        (
            "klpo_sequence",
            ONE_DRAW,
            "aux_policy_logprobs has rows of 1 numbers and line 1 rows",
        ),
        ("flash_reinforce", NOTHING, "action_mask marks no token, so there is nothing to train"),
        ("gigrpo", {"state_key": [1, 2]}, "state_key has 2 entries for 1 turns"),
        ("trace", {"gold_logprobs": [-1, -1, -1]}, "gold_logprobs has 3 boundaries for 1 turns"),
        ("spo", {"reward": 1.5}, r"reward is 1.5; .*\(spo\), needs one from 0.0 to 1.0"),
        ("sppo", {"preference": 2}, "preference is 2.0"),
        (
            "branching_bpo",
            {"parent_id": "t9", "fork_index": 1},
            "parent_id 't9' is not the id of another line",
        ),
        (
            "branching_bpo",
            {"parent_id": "t1", "fork_index": 1},
            "parent_id 't1' is not the id of another line",
        ),
        ("branching_bpo", {"parent_id": "t0"}, "fork_index is missing"),
    ],
)
def test_what_else_is_refused(name, changes, message):
    with pytest.raises(records.BadRecord, match=f"^line 2: {message}"):
        check(name, changes)


def test_of_all_lines():
    rows = [[-1]] * 7  # one row for each token of the longest record
    data = recordings.make_records()
    for record in data:
        length = len(record["action_mask"])
        record |= {f"aux_{whose}_logprobs": rows[:length] for whose in ("policy", "rollout")}
        record.pop("parent_id", None)
    found = records.parse_lines(enumerate(map(json.dumps, data), start=1))
    with pytest.raises(records.BadRecord, match=r"has 1 draw per token.*sequence_mc.*at least 2"):
        requirements.check(table.get("klpo_sequence"), found)
    requirements.check(table.get("klpo"), found)
    with pytest.raises(records.BadRecord, match="parent_id is missing, here and everywhere"):
        requirements.check(table.get("branching_bpo"), found)
