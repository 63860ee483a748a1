"""The file of a step: whole, readable without jax, and refused when torn."""

import numpy as np
import pytest

from jaxrl_single import evidence

FACTS = evidence.Facts(
    run_id="run",
    step=7,
    policy_version=6,
    algorithm="sao",
    critic_only=False,
    trajectories=tuple(
        {"key": f"{n:09d}-0", "task_id": "t", "group_id": n, "bootstrap": False} for n in range(2)
    ),
)
ARRAYS = {
    "tokens": np.arange(5, dtype=np.int32),
    "trajectory_index": np.array([0, 0, 0, 1, 1], np.int32),
    "action_mask": np.array([0, 1, 1, 0, 1], bool),
    "reward": np.array([1, 0], np.float32),
}


def test_what_was_written_is_read(tmp_path):
    path = evidence.write(tmp_path / "samples", evidence.Evidence(FACTS, ARRAYS))
    assert evidence.files(tmp_path / "samples") == {7: path}
    assert evidence.read_facts(path) == FACTS
    found = evidence.read(path)
    np.testing.assert_array_equal(found.of(1)["tokens"], [3, 4])
    assert "reward" not in found.of(1)
    assert {name: array.dtype for name, array in found.arrays.items()} == {
        name: array.dtype for name, array in ARRAYS.items()
    }
    assert [file.name for file in path.parent.iterdir()] == ["7.safetensors"]
    assert evidence.files(tmp_path / "none") == {}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: b"", lambda data: b"x" * 99]
)
def test_a_torn_file_is_named(tmp_path, damage):
    path = evidence.write(tmp_path, evidence.Evidence(FACTS, ARRAYS))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(evidence.BadEvidence, match=r"7\.safetensors is torn"):
        evidence.read(path)
