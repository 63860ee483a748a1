"""Dumps of other systems, as they write them, become records that can be read."""

import json
import math

import numpy as np
import pytest

from jaxrl_single import store, types, workdir
from jaxrl_single.lab import dumps, own_runs, records
from tests.trajectory_maker import make_error, make_trajectory


def converted(path, source, lines, **options):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = enumerate(dumps.samples_of(path, source))
    found = [dumps.CONVERTERS[source](sample, number, **options) for number, sample in samples]
    text = [json.dumps(record, allow_nan=False) for record in found]
    return records.parse_lines(enumerate(text, start=1))


TRL = {  # two completions of one prompt: model, tool, model; then padding
    "prompt": ["What is 2 + 2?"] * 2,
    "prompt_ids": [[1, 2], [1, 2]],
    "completion_ids": [[3, 4, 5, 6], [7, 8, 9, 0]],
    "completion_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
    "env_mask": [[1, 0, 0, 1], [1, 1, 1, 1]],
    "logprobs": [[[-0.1], [0.0], [0.0], [-0.2]], [-0.3, -0.4, -0.5, 0.0]],
    "ref_per_token_logps": [[-1, -1, -1, -1], [-2, -2, -2, -2]],
    "rewards": [[0.5, 0.25], [0.0, 0.0]],
}


def test_trl_columns(tmp_path):
    first, second = converted(tmp_path / "dump.jsonl", "trl", [TRL])
    assert first["action_mask"].tolist() == [False, False, True, False, False, True]
    assert first["rollout_logprobs"].tolist() == [0, 0, -0.1, 0, 0, -0.2]
    np.testing.assert_array_equal(first["policy_logprobs"], first["rollout_logprobs"])
    assert first["ref_logprobs"].tolist() == [0, 0, -1, 0, 0, -1]
    assert (first["reward"], second["reward"]) == (0.75, 0.0)
    assert first["group_id"] == second["group_id"] == second["task_id"]
    assert second["action_mask"].tolist() == [False, False, True, True, True]
    assert [first["id"], second["id"]] == [0, 1]


def test_trl_samples(tmp_path):
    sample = {
        "id": "x",
        "group_id": "g",
        "completion_ids": [3, 4],
        "sampling_per_token_logps": [-0.1, -0.2],
        "old_per_token_logps": [-0.3, -0.4],
        "env_reward": 1,
    }
    (record,) = converted(tmp_path / "dump.jsonl", "trl", [sample])
    assert record["policy_logprobs"].tolist() == [-0.3, -0.4]
    assert (record["id"], record["group_id"], record["reward"]) == ("x", "g", 1.0)


def test_rewards_of_trl_that_do_not_apply_count_nothing(tmp_path):
    dump = tmp_path / "dump.jsonl"
    sample = {"completion_ids": [3], "logprobs": [-0.1], "rewards": [1.0, None, 0.5, math.nan]}
    (record,) = converted(dump, "trl", [sample])
    assert record["reward"] == 1.5
    (record,) = converted(dump, "trl", [sample | {"rewards": 2}])
    assert record["reward"] == 2.0


def test_null_names_nothing(tmp_path):
    dump = tmp_path / "dump.jsonl"
    nothing = dict.fromkeys(("id", "task_id", "group_id", "uid", "index", "group_index"))
    samples = {
        "trl": {"completion_ids": [3], "logprobs": [-0.1], "reward": 1, "prompt": "a"},
        "verl": {"responses": [3], "response_mask": [1], "old_log_probs": [-1], "score": 1},
        "slime": {"tokens": [3], "response_length": 1, "rollout_log_probs": [-1], "reward": 1},
    }
    for source, sample in samples.items():
        named, plain = (
            converted(dump, source, [sample]),
            converted(dump, source, [sample | nothing]),
        )
        for name in ("id", "task_id", "group_id"):
            assert plain[0][name] == named[0][name] is not None


def test_verl(tmp_path):
    batch = {  # prompts are padded on the left, responses on the right
        "prompts": [[0, 1, 2], [1, 2, 3]],
        "responses": [[4, 5, 6, 0], [7, 8, 9, 4]],
        "attention_mask": [[0, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]],
        "response_mask": [[1, 0, 1, 0], [1, 1, 0, 0]],
        "rollout_log_probs": [[-1, 0, -2, 0], [-3, -4, 0, 0]],
        "old_log_probs": [[-1.5, 0, -2.5, 0], [-3.5, -4.5, 0, 0]],
        "values": [[0.1, 0, 0.2, 0], [0.3, 0.4, 0, 0]],
        "token_level_scores": [[0, 0, 1, 0], [0, 0, 0, 0.5]],
    }
    line = {"batch": batch, "non_tensor_batch": {"uid": ["u", "u"]}}
    first, second = converted(tmp_path / "dump.jsonl", "verl", [line])
    assert first["tokens"].tolist() == [0, 0, 4, 0, 6]
    assert first["action_mask"].tolist() == [False, False, True, False, True]
    assert first["rollout_logprobs"].tolist() == [0, 0, -1, 0, -2]
    assert first["policy_logprobs"].tolist() == [0, 0, -1.5, 0, -2.5]
    assert first["rewards"].tolist() == [0, 0, 0, 0, 1]
    assert second["rewards"].tolist() == [0, 0, 0, 0, 0.5, 0, 0]  # on a tool token in the dump
    assert first["group_id"] == second["group_id"] == "u"
    assert second["values"].tolist() == [0, 0, 0, 0.3, 0.4, 0, 0]


def test_slime(tmp_path):
    sample = {
        "group_index": 4,
        "index": 9,
        "tokens": [1, 2, 3, 4, 5],
        "response_length": 3,
        "loss_mask": [1, 0, 1],
        "rollout_log_probs": [-0.1, 0.0, -0.2],
        "reward": {"score": 1.0, "acc": 0.0},
        "status": "truncated",
    }
    dump = tmp_path / "dump.jsonl"
    (record,) = converted(dump, "slime", [{"samples": [sample]}], reward_key="score")
    assert record["action_mask"].tolist() == [False, False, True, False, True]
    assert record["rollout_logprobs"].tolist() == [0, 0, -0.1, 0, -0.2]
    assert (record["id"], record["group_id"], record["reward"]) == (9, 4, 1.0)
    assert record["terminated"] is False
    (record,) = converted(dump, "slime", [sample | {"reward": 0.5, "loss_mask": None}])
    assert record.num_actions == 3
    with pytest.raises(ValueError, match=r"one of \['acc', 'score'\].*--reward-key"):
        converted(dump, "slime", [sample])


def test_what_is_missing_or_uneven_is_named(tmp_path):
    dump = tmp_path / "dump.jsonl"
    for source, lines, message in (
        ("trl", [{"tokens": [1]}], "line 1: expected a JSON object with a list 'completion_ids'"),
        ("trl", [{"completion_ids": [1], "reward": 1}], "logprobs or sampling_per_token_logps is"),
        ("trl", [TRL | {"rewards": [1]}], r"\['rewards'\] are not as long as 'completion_ids'"),
        ("slime", [{"tokens": [1]}], "response_length is missing"),
        (
            "trl",
            [{"completion_ids": [1], "logprobs": [-1], "rewards": [None, None]}],
            "rewards holds no number",
        ),
        (
            "trl",
            [{"completion_ids": [1], "logprobs": [-1], "rewards": [{}]}],
            r"a reward is \{\}, expected a number",
        ),
        (
            "verl",
            [
                {
                    "responses": [1],
                    "response_mask": [1],
                    "old_log_probs": [-1],
                    "token_level_scores": [None],
                }
            ],
            "a reward is None, expected a number",
        ),
        (
            "slime",
            [{"tokens": [1], "response_length": 1, "rollout_log_probs": [-1], "reward": [1]}],
            r"a reward is \[1\], expected a number",
        ),
        (
            "verl",
            [{"responses": [1, 2], "response_mask": [1, 1], "old_log_probs": [-1], "score": 1}],
            "rollout_logprobs has 1 entries, the response 2",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            converted(dump, source, lines)
    dump.write_text("{")
    with pytest.raises(ValueError, match="line 1: Expecting"):
        list(dumps.samples_of(dump, "trl"))


@pytest.fixture
def run_with_two(tmp_path):
    paths, run_id = workdir.create(tmp_path / "run")
    box = store.TrajectoryStore(paths.trajectories, run_id)
    box.write(make_trajectory(2, run_id=run_id, success=False, reward=0.0))
    plain = make_trajectory(1, run_id=run_id)
    actions = plain.num_actions
    plain.topk_tokens = np.tile(np.arange(2, dtype=np.int32), (actions, 1))
    plain.topk_logprobs = np.tile(np.array([-0.5, -np.inf], np.float32), (actions, 1))
    box.write(plain)
    box.write(make_error(5, run_id=run_id))
    return paths, plain


def test_the_store(run_with_two):
    paths, given = run_with_two
    for where in (paths.root, paths.trajectories):
        found = list(own_runs.from_store(where))
        text = [json.dumps(record, allow_nan=False) for record in found]
        first, second = records.parse_lines(enumerate(text, start=1))
        assert [first["reward"], second["reward"]] == [0.0, 1.0]
        mask = given.action_mask
        np.testing.assert_array_equal(second["action_mask"], mask)
        for name in ("policy_logprobs", "rollout_logprobs"):
            np.testing.assert_array_equal(second[name][mask], given.rollout_logprobs[mask])
        np.testing.assert_array_equal(second.turns[mask], given.turn_ids[mask])
        assert second["id"] == f"{given.run_id}/{given.key}"
        rows = second["topk_rollout_logprobs"]
        assert (rows[mask] == [-0.5, -np.inf]).all()
        assert np.isnan(rows[~mask]).all()
    assert list(own_runs.from_store(paths.root, split="eval")) == []


def test_a_torn_file_is_refused(run_with_two):
    paths, _ = run_with_two
    torn = store.files(paths.trajectories, "train")[0]
    torn.write_bytes(torn.read_bytes()[:-5])
    with pytest.raises(types.InvalidTrajectory):
        list(own_runs.from_store(paths.root))


def test_own_fields_are_put_in_by_id(tmp_path):
    found = [{"id": 0, "policy_logprobs": [-1]}, {"id": "b", "policy_logprobs": [-1]}]
    path = tmp_path / "fields.jsonl"
    path.write_text('\n{"id": "b", "policy_logprobs": [-2], "values": [0.5]}\n \n')
    dumps.add_fields(found, path)
    assert found[0] == {"id": 0, "policy_logprobs": [-1]}
    assert found[1] == {"id": "b", "policy_logprobs": [-2], "values": [0.5]}
    path.write_text('{"id": "c"}\n')
    with pytest.raises(ValueError, match="line 1: no record has the id 'c'"):
        dumps.add_fields(found, path)
    for line, message in (("[1]", "expected a JSON object"), ("{", "not JSON")):
        path.write_text(f"\n{line}\n")
        with pytest.raises(ValueError, match=rf"fields\.jsonl, line 2: {message}"):
            dumps.add_fields(found, path)
