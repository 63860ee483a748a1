"""The store with real files: order, what is refused, and what a killed writer leaves."""

import dataclasses
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import safetensors.numpy

from jaxrl_single import atomic, store, types, workdir
from tests import trajectory_maker
from tests.trajectory_maker import make_error, make_trajectory, recorded_rows, routing

RUN = "run-a"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "trajectories"


def only_file(directory, split="train"):
    (path,) = (directory / split).iterdir()
    return path


@pytest.mark.parametrize(
    "trajectory",
    [
        make_trajectory(3, reward=0.0, success=False, temperature=0.7, group_id=9),
        make_trajectory(4, truncated=True, terminated=False, parent_id="run-a/1", fork_index=2),
        make_trajectory(5, split="eval", purpose="eval/rl@3", messages=()),
        make_error(6),
        make_trajectory(1234567890, length=3, success=None),
        make_trajectory(7, **recorded_rows(3)),
        make_trajectory(8, full_logprobs=np.float32([[-0.5, -np.inf]] * 3)),
        make_trajectory(9, expert_ids=routing(6), **recorded_rows(3)),
    ],
)
def test_what_is_written_is_read(directory, trajectory):
    assert store.TrajectoryStore(directory, RUN).write(trajectory)
    reader = store.TrajectoryStore(directory, RUN)
    assert reader.scan(trajectory.split) == [trajectory.key]
    trajectory_maker.assert_same(reader.read(trajectory.key), trajectory)


def test_keys_come_in_the_order_of_completion_and_once(directory):
    writer = store.TrajectoryStore(directory, RUN)
    reader = store.TrajectoryStore(directory, RUN)
    for ticket in (7, 2, 5):
        writer.write(make_trajectory(ticket))
    assert reader.scan() == ["000000007-0", "000000002-0", "000000005-0"]
    writer = store.TrajectoryStore(directory, RUN)  # the writer is restarted
    for ticket in (1, 9, 0):
        writer.write(make_trajectory(ticket))
    writer.write(make_trajectory(8, split="eval"))

    assert reader.scan() == ["000000001-0", "000000009-0", "000000000-0"]
    assert reader.scan() == []
    assert reader.scan("eval") == ["000000008-0"]
    in_order = [7, 2, 5, 1, 9, 0]
    assert store.TrajectoryStore(directory, RUN).scan() == [f"{t:09d}-0" for t in in_order]


def test_order_is_kept_when_the_clock_goes_back(directory, monkeypatch):
    writer = store.TrajectoryStore(directory, RUN)
    writer.write(make_trajectory(5))
    monkeypatch.setattr(store.time, "time_ns", lambda: 17)
    writer.write(make_trajectory(4))
    store.TrajectoryStore(directory, RUN).write(make_trajectory(3))
    assert store.TrajectoryStore(directory, RUN).scan() == [f"{t:09d}-0" for t in (5, 4, 3)]


def test_rewards_are_folded_when_they_come_in(directory):
    # Mask [0, 0, 1, 0, 1, 1]: the reward of the observation at 3 belongs to the action at 2.
    rewards = np.array([0, 0, 0.25, 1.0, 0, 0.5], np.float32)
    given = make_trajectory(rewards=rewards, reward=1.75)
    reader = store.TrajectoryStore(directory, RUN)
    reader.write(given)
    found = reader.read(reader.scan()[0])
    np.testing.assert_array_equal(found.rewards, np.float32([0, 0, 1.25, 0, 0, 0.5]))
    assert given.rewards[3] == 1.0  # the caller's is left alone


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": np.float32([1, 0, 0, 0, 0, 0])}, "the first action"),
        ({"reward": float("nan")}, "reward is nan"),
        ({"tokens": np.zeros(6, np.int64)}, "tokens is int64"),
        ({"rollout_logprobs": np.full(6, 0.5, np.float32)}, "rollout_logprobs"),
        ({"aux_tokens": np.zeros((3, 2), np.int32)}, "aux_tokens and aux_logprobs"),
        ({"full_logprobs": np.zeros((6, 2), np.float32)}, r"full_logprobs is float32\[6, 2\]"),
        ({"full_logprobs": np.zeros((3, 2))}, "full_logprobs is float64"),
        ({"full_logprobs": np.full((3, 2), np.nan, np.float32)}, r"full_logprobs\[0, 0\] is nan"),
        ({"expert_ids": routing(5)}, r"expert_ids is int16\[5, 3, 2\], expected int16\[6, "),
        ({"expert_ids": routing(6).astype(np.int32)}, r"expert_ids is int32\[6, 3, 2\]"),
        ({"expert_ids": routing(6)[:, :, :0]}, r"expert_ids is int16\[6, 3, 0\]"),
        ({"expert_ids": routing(6)[:, :, 0]}, r"expert_ids is int16\[6, 3\]"),
        ({"expert_ids": np.int16([[[0, 1]]] * 4 + [[[2, 2]]] * 2)}, r"\[4\] is \[\[2, 2\]\]"),
        ({"expert_ids": np.int16([[[0, 1], [-1, -1]]] * 6)}, r"\[0\] is .* or -1 throughout"),
        ({"expert_ids": np.int16([[[0, -2]]] * 6)}, r"expert_ids\[0\] is \[\[0, -2\]\]"),
        ({"run_id": "run-b"}, "of run run-b, this store is of run run-a"),
    ],
)
def test_an_invalid_trajectory_is_never_stored(directory, changes, message):
    writer = store.TrajectoryStore(directory, RUN)
    with pytest.raises(types.InvalidTrajectory, match=message):
        writer.write(make_trajectory(**changes))
    assert writer.counts() == {"train": 0, "eval": 0, "rejected": 0}


def test_an_episode_that_ran_twice_is_stored_once(directory):
    writer = store.TrajectoryStore(directory, RUN)
    assert writer.write(make_trajectory(1))
    assert not writer.write(make_trajectory(1, seed=5))
    restarted = store.TrajectoryStore(directory, RUN)
    assert restarted.has("000000001-0")
    assert not restarted.write(make_trajectory(1, seed=5))
    assert restarted.write(make_trajectory(1, attempt=1))  # another attempt is another episode


def test_a_second_file_of_a_key_is_not_used(directory):
    reader = store.TrajectoryStore(directory, RUN)
    one, other = (store.TrajectoryStore(directory, RUN) for _ in range(2))
    one.write(make_trajectory(1))
    other.write(make_trajectory(1, seed=5))  # two workers, neither knew of the other

    assert reader.scan() == ["000000001-0"]
    trajectory_maker.assert_same(reader.read("000000001-0"), make_trajectory(1))
    assert reader.counts()["train"] == 1

    reader.delete(["000000001-0"])
    store.TrajectoryStore(directory, RUN).write(make_trajectory(1))  # once more, much later
    assert reader.scan() == []
    assert reader.counts()["train"] == 0


def test_delete_leaves_the_rest(directory):
    box = store.TrajectoryStore(directory, RUN)
    for ticket in range(4):
        box.write(make_trajectory(ticket))
    keys = box.scan()
    box.delete([keys[0], keys[2], "000000099-0"])
    assert [store.key_of(path) for path in store.files(directory, "train")] == [keys[1], keys[3]]
    with pytest.raises(KeyError):
        box.read(keys[0])


def rejected(directory, key="000000000-0"):
    """Reads a file that must be refused; returns the reason."""
    reported = []
    reader = store.TrajectoryStore(directory, RUN, on_rejected=reported.append)
    assert reader.scan() == [key]
    with pytest.raises(store.Rejected) as caught:
        reader.read(key)
    assert caught.value.rejection == reported[0] == reader.rejections[0]
    assert reported[0].path.exists()
    assert reader.counts() == {"train": 0, "eval": 0, "rejected": 1}
    assert reader.scan() == []
    return reported[0].reason


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.3, 0.97])
def test_a_torn_file_is_refused(directory, fraction):
    store.TrajectoryStore(directory, RUN).write(make_trajectory())
    path = only_file(directory)
    data = path.read_bytes()
    path.write_bytes(data[: int(fraction * len(data))])
    assert "torn" in rejected(directory)


@pytest.mark.parametrize("where", [0.1, 0.5, 0.95, 0.999])
def test_a_changed_byte_is_noticed(directory, where):
    store.TrajectoryStore(directory, RUN).write(make_trajectory())
    path = only_file(directory)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1
    path.write_bytes(bytes(data))
    assert rejected(directory)


def test_zeros_after_a_power_cut_are_noticed(directory):
    store.TrajectoryStore(directory, RUN).write(make_trajectory())
    path = only_file(directory)
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:header] + bytes(len(data) - header))
    assert "checksum" in rejected(directory)


def test_a_file_of_another_run_is_refused(directory):
    store.TrajectoryStore(directory, "run-b").write(make_trajectory(run_id="run-b"))
    assert "of run run-b, this run is run-a" in rejected(directory)


def test_a_renamed_file_is_refused(directory):
    store.TrajectoryStore(directory, RUN).write(make_trajectory(1))
    path = only_file(directory)
    path.rename(path.with_name(path.name.replace("000000001", "000000000")))
    assert "holds train trajectory 000000001-0" in rejected(directory)


def test_an_eval_file_among_the_training_files_is_refused(directory):
    store.TrajectoryStore(directory, RUN).write(make_trajectory(split="eval"))
    path = only_file(directory, "eval")
    path.rename(directory / "train" / path.name)
    assert "holds eval trajectory" in rejected(directory)


def test_tensors_of_somebody_else_are_refused(directory):
    box = store.TrajectoryStore(directory, RUN)
    box.write(make_trajectory())
    safetensors.numpy.save_file({"w": np.ones(3)}, only_file(directory))
    assert "format None" in rejected(directory)


def test_an_invalid_file_with_a_right_checksum_is_refused(directory):
    box = store.TrajectoryStore(directory, RUN)
    box.write(make_trajectory())
    lying = dataclasses.replace(make_trajectory(), terminated=False)
    only_file(directory).write_bytes(store.encode(lying))
    assert "neither terminated nor truncated" in rejected(directory)


def test_a_strange_name_is_moved_away(directory):
    box = store.TrajectoryStore(directory, RUN)
    (directory / "train" / "copy of 1.safetensors").write_bytes(b"x")
    assert box.scan() == []
    assert box.rejections[0].key is None
    assert (directory / "rejected" / "copy of 1.safetensors").exists()


def test_a_repaired_key_is_taken_after_its_rejection(directory):
    box = store.TrajectoryStore(directory, RUN)
    box.write(make_trajectory())
    only_file(directory).write_bytes(b"")
    with pytest.raises(store.Rejected):
        box.read(box.scan()[0])
    store.TrajectoryStore(directory, RUN).write(make_trajectory())
    assert box.scan() == ["000000000-0"]
    trajectory_maker.assert_same(box.read("000000000-0"), make_trajectory())


def test_a_full_disk_leaves_no_half_file(directory):
    writer = store.TrajectoryStore(directory, RUN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))  # a larger file fails to be written
    try:
        with pytest.raises(workdir.CannotWrite, match="File too large"):
            writer.write(make_trajectory())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list((directory / "train").iterdir()) == []
    assert writer.write(make_trajectory())  # and it can be tried again


def test_an_impossible_directory_is_a_readable_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(workdir.CannotWrite, match=r"cannot write .*: Not a directory"):
        store.TrajectoryStore(tmp_path / "file" / "trajectories", RUN)


def test_threads_share_a_store(directory):
    box = store.TrajectoryStore(directory, RUN)
    found = []

    def write(start):
        for ticket in range(start, 80, 4):
            box.write(make_trajectory(ticket))

    writers = [threading.Thread(target=write, args=(start,)) for start in range(4)]
    for thread in writers:
        thread.start()
    while any(thread.is_alive() for thread in writers):
        found += [box.read(key).ticket for key in box.scan()]
    found += [box.read(key).ticket for key in box.scan()]
    assert sorted(found) == list(range(80))


WRITES_FOR_EVER = """
import sys
sys.path.insert(0, sys.argv[2])
from jaxrl_single import store
from trajectory_maker import make_trajectory
box = store.TrajectoryStore(sys.argv[1], "run-a")
for ticket in range(10**9):
    box.write(make_trajectory(ticket, length=20000))
    print(ticket, flush=True)
"""


def test_a_killed_writer_leaves_whole_files(directory):
    here = str(pathlib.Path(__file__).parent)
    child = subprocess.Popen(
        [sys.executable, "-c", WRITES_FOR_EVER, str(directory), here],
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(20):
        done = int(child.stdout.readline())
    while not any(name.startswith(".tmp") for name in os.listdir(directory / "train")):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    reader = store.TrajectoryStore(directory, RUN)
    tickets = [reader.read(key).ticket for key in reader.scan()]
    assert tickets == list(range(len(tickets)))
    assert len(tickets) > done
    assert reader.rejections == []
    assert not [p for p in (directory / "train").iterdir() if p.name.startswith(".")]


def test_the_temporary_file_of_a_living_writer_is_left_alone(directory):
    store.TrajectoryStore(directory, RUN)
    mine = directory / "train" / f"{atomic.PREFIX}{os.getpid()}-0-x"
    mine.write_bytes(b"half")
    store.TrajectoryStore(directory, RUN)
    assert mine.exists()


def test_a_file_with_an_unknown_array_is_refused(monkeypatch):
    data = store.encode(make_trajectory(**recorded_rows(3)))
    monkeypatch.setattr(store, "_ARRAY_FIELDS", types.TOKEN_FIELDS)  # as an older program has it
    with pytest.raises(types.InvalidTrajectory, match="its fields are not those"):
        store.decode(data)


def test_recorded_rows_are_covered_by_the_checksum():
    given = make_trajectory(**recorded_rows(3))
    data = store.encode(given)
    at = data.index(given.topk_logprobs.tobytes())
    torn = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with pytest.raises(types.InvalidTrajectory, match="checksum"):
        store.decode(torn)


def test_exports_are_json(directory):
    for trajectory in (make_trajectory(1), make_error(2)):
        record = json.loads(json.dumps(workdir.plain(store.to_tokens(trajectory))))
        assert record["tokens"] == trajectory.tokens.tolist()
        assert record["ticket"] == trajectory.ticket
    assert record["error"]["kind"] == "env"
    assert store.to_messages(make_trajectory(1))["messages"][1] == {
        "role": "assistant",
        "content": "3",
    }
