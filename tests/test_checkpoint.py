"""Checkpoints: what comes back, onto which devices, and what happens when saving is cut off."""

import dataclasses
import os
import resource
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_single import checkpoint, workdir


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    params: dict
    optimizer: tuple
    step: jax.Array
    key: jax.Array


def make_state(scale=1.0, sharding=None):
    params = {
        "layers": {"kernel": scale * jnp.arange(16.0).reshape(8, 2)},
        "head": {"kernel": (scale * jnp.ones(3)).astype(jnp.bfloat16)},
    }
    if sharding is not None:
        params["layers"]["kernel"] = jax.device_put(params["layers"]["kernel"], sharding)
    labels = {"layers": {"kernel": "train"}, "head": {"kernel": "frozen"}}
    transforms = {"train": optax.adamw(1e-3), "frozen": optax.set_to_zero()}
    optimizer = optax.multi_transform(transforms, labels).init(params)
    return State(params, optimizer, jnp.int32(scale), jax.random.key(int(scale)))


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert left.dtype == right.dtype
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def test_state_and_metadata_come_back_bit_for_bit(tmp_path):
    state = make_state(3.0)
    metadata = {"tickets": {"pending": [4, 5]}, "cursor": 17, "text": "é"}
    assert checkpoint.Checkpoints(tmp_path, keep=2).save(7, state, metadata)

    found, found_metadata = checkpoint.Checkpoints(tmp_path, keep=2).restore(make_state(0.0))

    assert_equal(found, state)
    assert found_metadata == metadata
    drawn = jax.random.uniform(found.key, (3,))
    np.testing.assert_array_equal(drawn, jax.random.uniform(state.key, (3,)))


def test_restores_onto_the_shardings_asked_for(tmp_path):
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharded = NamedSharding(mesh, P("data", "fsdp"))
    on_one = checkpoint.Checkpoints(tmp_path / "one", keep=1)
    on_one.save(1, make_state(2.0), {})

    found, _ = on_one.restore(make_state(0.0, sharded))

    assert found.params["layers"]["kernel"].sharding == sharded
    assert_equal(found, make_state(2.0))

    on_many = checkpoint.Checkpoints(tmp_path / "many", keep=1)
    on_many.save(1, make_state(2.0, sharded), {})
    back, _ = on_many.restore(make_state(0.0))
    assert len(back.params["layers"]["kernel"].sharding.device_set) == 1
    assert_equal(back, make_state(2.0))


def test_keeps_the_newest_and_restores_the_one_asked_for(tmp_path):
    checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, make_state(float(step)), {"step": step})

    assert checkpoints.steps() == [2, 3]
    assert checkpoints.restore(make_state(0.0), 2)[1] == {"step": 2}
    assert_equal(checkpoints.restore(make_state(0.0))[0], make_state(3.0))


def test_a_step_is_saved_once_and_never_an_earlier_one(tmp_path):
    checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
    checkpoints.save(4, make_state(1.0), {"which": "first"})

    assert not checkpoints.save(4, make_state(2.0), {"which": "second"})
    assert checkpoints.restore(make_state(0.0))[1] == {"which": "first"}
    with pytest.raises(checkpoint.CheckpointError, match=r"step 3 comes before .* 4"):
        checkpoints.save(3, make_state(1.0), {})


def test_another_config_is_refused_with_the_difference(tmp_path):
    checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, {"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)}, {})

    with pytest.raises(checkpoint.CheckpointError) as caught:
        checkpoints.restore(
            {"a": jnp.zeros((2, 4)), "b": jnp.zeros(4, jnp.int32), "c": jnp.ones(1)}
        )

    message = str(caught.value)
    assert "a: saved float32[2, 3], wanted float32[2, 4]" in message
    assert "b: saved float32[4], wanted int32[4]" in message
    assert "c: saved nothing, wanted float32[1]" in message


def test_a_state_of_no_arrays_is_refused_by_name(tmp_path):
    checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
    with pytest.raises(checkpoint.CheckpointError, match="a/step is a int"):
        checkpoints.save(1, {"a": {"step": 3}}, {})
    with pytest.raises(checkpoint.CheckpointError, match=r"a has shape \(0, 2\)"):
        checkpoints.save(1, {"a": jnp.zeros((0, 2))}, {})
    assert checkpoints.latest_step() is None


def test_nothing_there_and_damage_have_readable_errors(tmp_path):
    checkpoints = checkpoint.Checkpoints(tmp_path, keep=3)
    with pytest.raises(checkpoint.CheckpointError, match=r"no checkpoint of step None, only \[\]"):
        checkpoints.restore(make_state(0.0))
    checkpoints.save(1, make_state(1.0), {})
    checkpoints.save(2, make_state(2.0), {})
    for path in (tmp_path / "2" / "state").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(b"")

    with pytest.raises(checkpoint.CheckpointError, match=r"2 is damaged.*\[1\]"):
        checkpoints.restore(make_state(0.0))
    assert_equal(checkpoints.restore(make_state(0.0), 1)[0], make_state(1.0))


def test_metadata_is_read_without_jax(tmp_path):
    checkpoints = checkpoint.Checkpoints(tmp_path, keep=3)
    assert workdir.newest_checkpoint(tmp_path) is None
    checkpoints.save(2, make_state(1.0), {"policy_version": 5})
    checkpoints.save(11, make_state(1.0), {"policy_version": 9})
    (tmp_path / "12.orbax-checkpoint-tmp").mkdir()

    assert workdir.newest_checkpoint(tmp_path) == (11, {"policy_version": 9})


def test_a_full_disk_leaves_the_last_checkpoint_intact(tmp_path):
    checkpoints = checkpoint.Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, make_state(1.0), {})
    big = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(64, 64)))}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))  # larger files fail to be written
    try:
        with pytest.raises(
            checkpoint.CheckpointError, match=r"cannot save .* step 2 .*step 1 is intact"
        ):
            checkpoints.save(2, big, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    reopened = checkpoint.Checkpoints(tmp_path, keep=1)
    assert reopened.steps() == [1]
    assert_equal(reopened.restore(make_state(0.0))[0], make_state(1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


SAVES_FOR_EVER = """
import sys, jax.numpy as jnp
from jaxrl_single import checkpoint
checkpoints = checkpoint.Checkpoints(sys.argv[1], keep=2)
for step in range(1, 10**6):
    checkpoints.save(step, {"w": jnp.full((512, 512), float(step))}, {"step": step})
    print(step, flush=True)
"""


def kill_while_saving(directory):
    """Starts a process that saves, kills it when a half-written checkpoint is there."""
    child = subprocess.Popen(
        [sys.executable, "-c", SAVES_FOR_EVER, str(directory)],
        stdout=subprocess.PIPE,
        env={**os.environ, "XLA_FLAGS": ""},
        text=True,
    )
    for _ in range(2):
        done = int(child.stdout.readline())
    while not any("tmp" in name for name in os.listdir(directory)):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    return done


def test_kill_while_saving_leaves_a_whole_checkpoint(tmp_path):
    done = kill_while_saving(tmp_path)
    assert any("tmp" in path.name for path in tmp_path.iterdir()), "the kill came too late"

    checkpoints = checkpoint.Checkpoints(tmp_path, keep=2)
    latest = checkpoints.latest_step()
    state, metadata = checkpoints.restore({"w": jnp.zeros((512, 512))})

    assert latest >= done
    assert metadata == {"step": latest}
    np.testing.assert_array_equal(state["w"], float(latest))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(map(str, checkpoints.steps()))
    assert workdir.newest_checkpoint(tmp_path) == (latest, {"step": latest})
    assert checkpoints.save(latest + 1, state, {})
