"""What a workdir holds of its trajectories, and what the steps that trained them recorded."""

import dataclasses

import numpy as np
import pytest

from jaxrl_single import evidence, store, workdir
from jaxrl_single.lab import own_runs
from tests.trajectory_maker import make_error, make_trajectory


def facts(run_id, keys, **changes):
    of = tuple({"key": key, "task_id": "t", "group_id": 0, "bootstrap": True} for key in keys)
    return dataclasses.replace(evidence.Facts(run_id, 10, 9, "sao", False, of), **changes)


@pytest.fixture
def run(tmp_path):
    """Step 10 trained 4 and 2, and dropped 1; 7 waits, 8 failed."""
    paths, run_id = workdir.create(tmp_path / "run")
    box = store.TrajectoryStore(paths.trajectories, run_id)
    made = {number: make_trajectory(number, run_id=run_id) for number in (1, 2, 4, 7)}
    for trajectory in made.values():
        box.write(trajectory)
    box.write(make_error(8, run_id=run_id))
    box.scan()
    folders = {2: "train/00000010-rl", 4: "train/00000010-rl", 1: "train/00000010-dropped"}
    box.keep({made[number].key: folder for number, folder in folders.items()})
    batch = [made[4], made[2]]
    index = np.concatenate([np.full(one.num_tokens, n) for n, one in enumerate(batch)])
    arrays = {
        "trajectory_index": index.astype(np.int32),
        "loss_mask": np.concatenate([one.action_mask for one in batch]),
        "policy_logprobs": -np.arange(len(index), dtype=np.float32) / 8,
        "values": np.arange(len(index), dtype=np.float32),
        "bootstrap_values": np.array([0.5, 0.25], np.float32),
    }
    of = facts(run_id, [one.key for one in batch])
    evidence.write(paths.samples, evidence.Evidence(of, arrays))
    return paths, made, arrays


def numbers(records):
    return [int(record["id"].rpartition("/")[2].partition("-")[0]) for record in records]


def test_a_step_comes_in_the_order_of_its_batch_with_what_it_found(run):
    paths, made, arrays = run
    tally = own_runs.Tally()
    first, second = own_runs.from_store(paths.root, steps=(10,), tally=tally)
    assert numbers([first, second]) == [4, 2]
    assert tally == own_runs.Tally(records=2, known=2, values=2)
    mask, length = made[4].action_mask, made[4].num_tokens
    for name in ("policy_logprobs", "values"):
        expected = [x if m else None for x, m in zip(arrays[name], mask, strict=False)]
        assert first[name] == expected[:length]
    assert (first["bootstrap_value"], second["bootstrap_value"]) == (0.5, 0.25)


def test_without_steps_all_that_is_left_comes_and_the_unknown_is_counted(run):
    paths, made, _ = run
    tally = own_runs.Tally()
    found = list(own_runs.from_store(paths.root, tally=tally))
    assert numbers(found) == [4, 2, 1, 7]
    assert tally == own_runs.Tally(records=4, known=2, values=2, errors=1)
    mask = made[7].action_mask
    assert found[3]["policy_logprobs"] == own_runs.on_actions(made[7].rollout_logprobs, mask)
    told = " ".join(own_runs.notes(tally))
    assert "of 2 no policy_logprobs were recorded" in told
    assert "1 episodes failed" in told


def test_evidence_of_another_run_is_not_used(run):
    paths, made, arrays = run
    of = facts("another", [made[4].key, made[2].key])
    evidence.write(paths.samples, evidence.Evidence(of, arrays))
    assert all("values" not in record for record in own_runs.from_store(paths.root))


def test_steps_are_numbers():
    assert own_runs.parse_steps("10,20,") == {10, 20}
    with pytest.raises(ValueError, match="expected numbers as in 10,20"):
        own_runs.parse_steps("ten")
