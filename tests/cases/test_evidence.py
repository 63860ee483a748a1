"""C26: what is left of a finished run, and what is known of it, is said."""

import subprocess
import sys

from jaxrl_single import store, workdir
from tests.trajectory_maker import make_trajectory

WRITTEN, LEFT = 13_487, 3


def finished_run(root):
    """As runs of before leave it: all but the last batch was deleted."""
    paths, run_id = workdir.create(root)
    counts = {"written": WRITTEN, "trained": WRITTEN, "dropped_stale": 0, "errors": 0, "pending": 0}
    status = workdir.Status("done", 160, 160, policy_version=150, trajectories=counts)
    workdir.write_status(paths, status)
    box = store.TrajectoryStore(paths.trajectories, run_id)
    for number in range(LEFT):
        box.write(make_trajectory(number, run_id=run_id))
    return paths


def command(name, *arguments):
    words = [sys.executable, "-m", f"jaxrl_single.run.{name}", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True)


def test_c26_import_says_what_is_there_and_what_was_not_recorded(tmp_path):
    paths, output = finished_run(tmp_path / "run"), tmp_path / "records.jsonl"
    done = command("import_records", "--from=store", f"--input={paths.root}", f"--output={output}")
    assert done.returncode == 0
    assert len(output.read_text().splitlines()) == LEFT
    assert f"{WRITTEN} trajectories were written" in done.stderr
    assert f"{LEFT} are left" in done.stderr
    assert "no policy_logprobs were recorded" in done.stderr
    assert "set to the sampler's" in done.stderr


def test_c26_export_says_what_is_there(tmp_path):
    paths = finished_run(tmp_path / "run")
    done = command("export", paths.root)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, LEFT)
    assert f"{WRITTEN} trajectories were written for training, {LEFT} are left" in done.stderr
