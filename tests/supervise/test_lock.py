"""One run per workdir: two real processes, and files that the dead have left."""

import os
import signal
import subprocess
import sys
import time

import programs
import pytest

from jaxrl_single import atomic, workdir
from jaxrl_single.supervise import child, identity, lock


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


@pytest.fixture
def holder(paths):
    process = subprocess.Popen(programs.command(paths.root, "holder", "hold_lock"))
    while not programs.notes(paths.root, "holder"):
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_a_second_run_is_refused_and_names_the_first(paths, holder):
    assert workdir.is_running(paths)
    with pytest.raises(lock.WorkdirBusy, match=rf"in use by a run, process {holder.pid}\b.*--work"):
        lock.hold(paths).__enter__()


def test_the_lock_goes_with_its_process(paths, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not workdir.is_running(paths)
    with lock.hold(paths):
        assert workdir.is_running(paths)
    assert not workdir.is_running(paths)


def test_a_look_at_the_lock_does_not_refuse_a_start(paths):
    paths.lock.write_text("")
    code = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1])\n"
        "fcntl.flock(file, fcntl.LOCK_SH)\n"
        "print('looking', flush=True)\n"
        "time.sleep(0.3)\n"
    )
    looker = subprocess.Popen(
        [sys.executable, "-c", code, str(paths.lock)], stdout=subprocess.PIPE, text=True
    )
    looker.stdout.readline()
    with lock.hold(paths):
        pass
    looker.wait()
    looker.stdout.close()


def test_a_lock_that_cannot_be_made(tmp_path):
    with (
        pytest.raises(workdir.CannotWrite, match="lock: No such file"),
        lock.hold(workdir.Workdir(tmp_path / "missing")),
    ):
        pass


def sleeper(**environment):
    command = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, process_group=0, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    return process


def test_a_stranger_with_the_number_of_a_dead_child_is_left_alone(paths):
    stranger = sleeper(**{child.PARENT_PID: "1"})
    record = {**identity.describe(stranger.pid), "start_time": "1"}  # began at another time
    workdir.write_json(
        paths.processes, {"parent": {"pid": 999999}, "children": {"sampler": record}}
    )
    try:
        assert lock.reclaim(paths) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_a_dead_run_left_is_cleaned_and_told(paths):
    left = sleeper(**{child.PARENT_PID: "999999"})
    workdir.write_json(
        paths.processes,
        {"parent": {"pid": 999999}, "children": {"trainer": identity.describe(left.pid)}},
    )
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    half = paths.root / f"{atomic.PREFIX}{dead}-0-status.json"
    half.write_text("{")
    paths.heartbeat("trainer").touch()

    told = lock.reclaim(paths)

    assert left.wait(timeout=5) == -signal.SIGKILL
    assert told == [
        f"ended what an earlier run left of its trainer: {left.pid}",
        f"removed the half-written {half.name}",
    ]
    assert not half.exists()
    assert not paths.heartbeat("trainer").exists()
