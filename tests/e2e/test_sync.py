"""Synchronous runs: the same numbers bit for bit, also through kill -9."""

import pathlib

import pytest

from tests.e2e import runs

pytestmark = pytest.mark.slow

# One batch waits in the store at each checkpoint, so unconsumed work is part of every resume.
OVERRIDES = (
    "mode=sync",
    "sync.lag=1",
    "rl.critic_only_steps=3",
    "checkpoint.every_steps=2",
    "eval.num_tasks=8",
)


def arrays(workdir, step):
    """All arrays of a checkpoint as bytes by name."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    place = pathlib.Path(workdir, "checkpoints", "rl", str(step), "state")
    restored = ocp.StandardCheckpointer().restore(place)
    flat = jax.tree_util.tree_leaves_with_path(restored)
    plain = {jax.tree_util.keystr(path): leaf for path, leaf in flat}
    plain["['key']"] = jax.random.key_data(plain["['key']"])
    return {name: np.asarray(leaf).tobytes() for name, leaf in plain.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Eight steps without an interruption."""
    workdir = tmp_path_factory.mktemp("sync") / "whole"
    runs.run(workdir, *OVERRIDES, "rl.num_steps=8")
    return workdir


def test_same_seed_same_numbers(whole, tmp_path):
    runs.run(tmp_path / "again", *OVERRIDES, "rl.num_steps=8")
    assert arrays(tmp_path / "again", 8) == arrays(whole, 8)


@pytest.mark.parametrize(
    "kill_after",
    [
        pytest.param(1, id="critic_only"),
        pytest.param(3, id="at_switch", marks=pytest.mark.long),
        pytest.param(5, id="later", marks=pytest.mark.long),
    ],
)
def test_killed_and_continued_is_the_same_bit_for_bit(whole, tmp_path, kill_after):
    """Parameters, both optimisers, and what was trained."""
    workdir = tmp_path / "killed"
    process = runs.start(workdir, *OVERRIDES, "rl.num_steps=8")
    runs.wait_until(
        lambda: kill_after in runs.rl_steps(workdir), f"step {kill_after}", process=process
    )
    runs.kill(process.pid)
    process.wait()
    runs.run(workdir, *OVERRIDES, "rl.num_steps=8")
    assert arrays(workdir, 8) == arrays(whole, 8)
    assert runs.inspect(workdir)["trajectories"] == runs.inspect(whole)["trajectories"]
    assert runs.rl_steps(workdir) == list(range(1, 9))
    assert runs.inspect(workdir)["evals"] == runs.inspect(whole)["evals"]


@pytest.mark.long
def test_more_steps_on_a_rerun_are_the_same_as_all_at_once(whole, tmp_path):
    runs.run(tmp_path / "half", *OVERRIDES, "rl.num_steps=4")
    runs.run(tmp_path / "half", *OVERRIDES, "rl.num_steps=8")
    assert arrays(tmp_path / "half", 8) == arrays(whole, 8)
