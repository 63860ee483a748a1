"""The record format: what is read, what is filled in, and what is refused in which words."""

import json

import numpy as np
import pytest

from jaxrl_single.lab import fields, records
from tests.lab import recordings

NAN, INF = float("nan"), float("inf")
BASE = {
    "id": "a",
    "task_id": 7,
    "reward": 1.0,
    "action_mask": [0, 1, 1, 0],
    "policy_logprobs": [None, -0.5, -0.25, None],
    "rollout_logprobs": [None, -0.5, -0.5, None],
}


def record(**changes):
    """BASE with changes; what is set to ... is left out."""
    data = {name: value for name, value in (BASE | changes).items() if value is not ...}
    return records.parse(3, json.loads(json.dumps(data)))


def same(one, other):
    assert set(one.fields) == set(other.fields)
    for name, value in one.fields.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_every_field_is_documented():
    for name in fields.READERS:
        assert name in records.__doc__, name


def test_defaults():
    found = record()
    assert (found.line, found.length, found.num_actions) == (3, 4, 2)
    np.testing.assert_array_equal(found["rewards"], [0, 0, 1, 0])
    np.testing.assert_array_equal(found["policy_logprobs"], [0, -0.5, -0.25, 0])
    many = record(
        action_mask=[0, 1, 1, 0, 1, 0],
        policy_logprobs=[-1] * 6,
        rollout_logprobs=[-1] * 6,
    )
    np.testing.assert_array_equal(many.turns, [0, 0, 0, 1, 1, 2])
    assert many["policy_logprobs"].dtype == np.float64


def test_rewards_of_observations_go_to_the_action_before():
    found = record(rewards=[0, 0.25, None, 0.75], reward=...)
    np.testing.assert_array_equal(found["rewards"], [0, 0.25, 0.75, 0])
    assert found["reward"] == 1.0
    same(found, record(rewards=[None, 0.25, 0, 0.75]))


@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e300, 5])
def test_what_lies_under_the_mask_does_not_matter(garbage):
    for number, data in enumerate(recordings.make_records()):
        mask = data["action_mask"]
        extra = {"turn_ids": [0] * len(mask), "policy_versions": [0] * len(mask)}
        clean, dirty = data | extra, data | extra
        for name, value in clean.items():
            if isinstance(value, list) and len(value) == len(mask) and name != "rewards":
                row = isinstance(value[mask.index(1)], list)
                junk = [garbage] if row else garbage
                filled = [x if m else junk for x, m in zip(value, mask, strict=True)]
                dirty = dirty | {name: filled}
        dirty |= {k: clean[k] for k in ("action_mask", "state_key", "gold_logprobs", "tokens")}
        same(records.parse(number, clean), records.parse(number, dirty))


def test_impossible_tokens_of_the_sampler():
    rows = {"full_policy_logprobs": [None, [-1, None], [-1, -2], None]}
    rows["full_rollout_logprobs"] = [None, [0.0, None], [-1, -INF], None]
    found = record(**rows)
    assert found["full_rollout_logprobs"][1].tolist() == [0.0, -INF]
    assert found["full_policy_logprobs"][1].tolist() == [-1, -INF]
    with pytest.raises(records.BadRecord, match=r"full_policy_logprobs\[1\]\[1\] is nan"):
        record(**rows | {"full_rollout_logprobs": [None, [-1, -1], [-1, -1], None]})
    draws = {"aux_rollout_logprobs": [None, [0.0, None], [-1, -1], None]}
    with pytest.raises(records.BadRecord, match=r"aux_rollout_logprobs\[1\]\[1\] is nan"):
        record(**draws)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_logprobs": ...}, "rollout_logprobs is missing; every trajectory needs"),
        ({"task_id": None}, "task_id is missing"),
        ({"reward": ...}, "reward is missing"),
        ({"reward": "1"}, 'reward is "1", expected a number from'),
        ({"reward": True}, "reward is true"),
        ({"reward": NAN}, "reward is NaN"),
        ({"id": [1]}, "id is .*expected a string or an integer"),
        ({"action_mask": [0, 1, 2, 0]}, "action_mask must be a list of 0 and 1"),
        ({"action_mask": []}, "action_mask must be a list"),
        ({"action_mask": [0, 1, 1]}, "policy_logprobs must be a list of 3 numbers.*got 4 entries"),
        ({"policy_logprobs": -0.5}, "policy_logprobs must be a list of 4 numbers.*got -0.5"),
        ({"policy_logprobs": [0, None, -1, 0]}, r"policy_logprobs\[1\] is null, expected a log-pr"),
        ({"rollout_logprobs": [0, -1, NAN, 0]}, r"rollout_logprobs\[2\] is NaN, expected"),
        ({"rollout_logprobs": [0, -1, -INF, 0]}, r"rollout_logprobs\[2\] is -Infinity"),
        ({"rollout_logprobs": [0, 0.5, -1, 0]}, r"rollout_logprobs\[1\] is 0.5, .*finite and <= 0"),
        ({"rollout_logprobs": [0, "x", -1, 0]}, r'rollout_logprobs\[1\] is "x", expected a number'),
        ({"rollout_logprobs": [0, True, -1, 0]}, r"rollout_logprobs\[1\] is true"),
        ({"values": [0, INF, 0, 0]}, r"values\[1\] is Infinity, expected a number from"),
        ({"entropies": [0, -1, 0, 0]}, r"entropies\[1\] is -1, expected an entropy"),
        ({"rewards": [0, 0.5, 0, 0]}, "reward is 1.0, but rewards add up to 0.5"),
        ({"rewards": [1, 0, 0, 0]}, "rewards: reward 1.0 at token 0 precedes the first action"),
        ({"terminated": "yes"}, "terminated is .*expected true or false"),
        ({"turn_ids": [0, 1, 0, 0]}, "turn_ids must be 0 or more and never fall"),
        ({"turn_ids": [0, 0.5, 1, 0]}, r"turn_ids\[1\] is 0.5, expected an integer"),
        ({"fork_index": 5}, "fork_index is 5, expected an integer from 0 to 4"),
        ({"gold_logprobs": [0.5]}, "gold_logprobs must be mean log-probabilities"),
        ({"state_key": "s"}, "state_key must be a list with a state for each turn"),
        ({"aux_policy_logprobs": [None]}, "must be a list with a row for each of 4 tokens"),
        ({"aux_policy_logprobs": [None, [-1], None, None]}, r"\[2\] is null, expected a row"),
        ({"aux_policy_logprobs": [None, [-1], [-1, -1], None]}, r"\[2\] must be a list of 1 num"),
        ({"aux_policy_logprobs": [None, [-1], [2], None]}, r"\[2\]\[0\] is 2.0, expected a log-p"),
        (
            {
                "aux_policy_logprobs": [None, [-1], [-1], None],
                "aux_rollout_logprobs": [None, [-1, -1], [-1, -1], None],
            },
            "rows must be equally long",
        ),
    ],
)
def test_refusals_name_the_line_and_the_field(changes, message):
    with pytest.raises(records.BadRecord, match=f"^line 3: .*{message}"):
        record(**changes)


def test_the_lines_of_a_file():
    lines = [json.dumps(BASE), "", json.dumps(BASE | {"id": "b"})]
    found = records.parse_lines(enumerate(lines, start=1))
    assert [(one["id"], one.line) for one in found] == [("a", 1), ("b", 3)]
    for broken, message in (
        ([*lines, "{"], "^line 4: this is no JSON"),
        ([*lines, "[1]"], "^line 4: expected a JSON object"),
        ([*lines, lines[0]], "^line 4: id 'a' is that of line 1"),
        ([""], "holds no trajectory"),
    ):
        with pytest.raises(records.BadRecord, match=message):
            records.parse_lines(enumerate(broken, start=1))
