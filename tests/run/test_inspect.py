"""`python -m jaxrl_single.run.inspect`: what it prints of runs in every state."""

import fcntl
import json
import subprocess
import sys

import jax.numpy as jnp
import pytest

from jaxrl_single import checkpoint, workdir
from jaxrl_single.report import inspect

COUNTS = {"written": 90, "trained": 64, "dropped_stale": 3, "errors": 1, "pending": 22}
KEYS = ["run_id", "step", "policy_version", "params_sha256", "trajectories", "evals"]


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


@pytest.fixture
def running(paths):
    """The workdir of a run that runs: its lock is held."""
    with open(paths.lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield paths


def save(paths, stage, step, version, sha, counts=COUNTS):
    checkpoints = checkpoint.Checkpoints(paths.stage_checkpoints(stage), keep=3)
    metadata = {"policy_version": version, "params_sha256": sha, "counts": counts}
    checkpoints.save(step, {"w": jnp.ones(2)}, metadata)
    checkpoints.close()


def write_status(paths, stage, step, version, sha):
    counts = {**COUNTS, "trained": 80}
    workdir.write_status(
        paths,
        workdir.Status(stage, step, 150, version, params_sha256=sha, trajectories=counts),
    )


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "jaxrl_single.run.inspect", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_it_prints_one_json_object(paths):
    evals = [
        workdir.Eval("warm_start", 0, 1, 512, 0.4, 0.36, 0.44),
        workdir.Eval("final", 50, 52, 512, 0.95, 0.93, 0.97),
    ]
    for evaluation in evals:
        workdir.record_eval(paths, evaluation)
    save(paths, "rl", 25, 27, "aa")
    save(paths, "rl", 50, 52, "bb")

    done = command(paths.root)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    assert found == {
        "run_id": workdir.run_id_of(paths),
        "step": 50,
        "policy_version": 52,
        "params_sha256": "bb",
        "trajectories": COUNTS,
        "evals": [
            {
                "stage": "warm_start",
                "step": 0,
                "policy_version": 1,
                "n": 512,
                "success": 0.4,
                "ci_low": 0.36,
                "ci_high": 0.44,
            },
            {
                "stage": "final",
                "step": 50,
                "policy_version": 52,
                "n": 512,
                "success": 0.95,
                "ci_low": 0.93,
                "ci_high": 0.97,
            },
        ],
    }


def test_a_running_run_speaks_for_itself(running):
    save(running, "rl", 25, 27, "aa")
    write_status(running, "rl", 37, 39, "cc")
    found = inspect.inspect(running)
    assert (found["step"], found["policy_version"], found["params_sha256"]) == (37, 39, "cc")
    assert found["trajectories"]["trained"] == 80


def test_of_a_killed_run_the_checkpoint_speaks(paths):
    save(paths, "rl", 25, 27, "aa")
    write_status(paths, "rl", 37, 39, "cc")
    found = inspect.inspect(paths)
    assert (found["step"], found["policy_version"], found["params_sha256"]) == (25, 27, "aa")
    assert found["trajectories"]["trained"] == 64


def test_before_rl_the_step_is_0(running):
    write_status(running, "warm_start", 200, -1, None)
    found = inspect.inspect(running)
    assert (found["step"], found["policy_version"], found["params_sha256"]) == (0, -1, None)
    save(running, "value_pretraining", 0, 1, "dd")
    assert inspect.inspect(running)["params_sha256"] == "dd"
    write_status(running, "value_pretraining", 120, 1, "dd")
    assert inspect.inspect(running)["step"] == 0


def test_a_new_workdir_has_nothing(paths):
    found = inspect.inspect(paths)
    assert list(found) == KEYS
    assert found["trajectories"] == workdir.NOBODY
    assert (found["step"], found["evals"]) == (0, [])


@pytest.mark.parametrize("damage", ["missing", "empty", "broken"])
def test_no_run_is_one_readable_line(tmp_path, damage):
    root = tmp_path / "run"
    if damage != "missing":
        root.mkdir()
    if damage == "broken":
        (root / "run.json").write_text("{")
    done = command(root)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert str(root) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_loads_nothing_heavy(paths):
    code = (
        "import sys\n"
        "from jaxrl_single.run import inspect\n"
        "sys.argv = ['inspect', sys.argv[1]]\n"
        "assert inspect.main() == 0\n"
        "heavy = {'jax', 'numpy', 'orbax', 'rich', 'ml_collections', 'tensorboardX'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(paths.root)], capture_output=True, text=True
    )
    assert done.stderr == "[]\n"
