"""A process and its parent: heartbeat, and the end of an orphan with and without prctl."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from jaxrl_single.supervise import child, identity

STARTS_A_CHILD = """
import os, subprocess, sys, time
code = sys.argv[1]
child = subprocess.Popen([sys.executable, "-c", code, str(os.getpid())], process_group=0,
                         stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
time.sleep(60)
"""
WATCHES = """
import sys, time
from jaxrl_single.supervise import child
{prepare}
child.exit_with_parent(int(sys.argv[1]), interval_s=0.1)
print("watching", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("prepare", ["", "child.sys.platform = 'other'"], ids=["prctl", "thread"])
def test_an_orphan_ends(prepare):
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_CHILD, WATCHES.format(prepare=prepare)],
        stdout=subprocess.PIPE,
        text=True,
    )
    word, pid = parent.stdout.readline().split()
    record = identity.describe(int(pid))
    assert word == "watching"
    time.sleep(0.3)
    assert identity.is_alive(record)  # while its parent lives

    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert identity.wait_until_gone(record, timeout_s=10.0)


def test_a_child_whose_parent_died_before_it_looked_ends():
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHES.format(prepare=""), "999999999"],
        process_group=0,
        stdout=subprocess.DEVNULL,
    )
    assert process.wait(timeout=20) == -signal.SIGKILL


def test_beats_are_files_and_not_too_many(tmp_path):
    path = tmp_path / "trainer.heartbeat"
    heartbeat = child.Heartbeat(path, every_s=1000.0)
    assert path.exists()
    os.utime(path, (1, 1))
    heartbeat.beat()
    assert path.stat().st_mtime == 1  # too soon
    often = child.Heartbeat(path, every_s=0.0)
    os.utime(path, (1, 1))
    often.beat()
    assert path.stat().st_mtime > 1


def test_a_recorded_process_is_known_by_its_start(tmp_path):
    mine = identity.describe(os.getpid())
    assert identity.is_alive(mine)
    assert not identity.is_alive({**mine, "start_time": "1"})
    gone = subprocess.Popen([sys.executable, "-c", ""])
    while pathlib.Path(f"/proc/{gone.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert identity.start_time(gone.pid) is None  # a zombie does nothing any more
    gone.wait()
