"""Small real programs for the tests of supervision: `python programs.py WORKDIR NAME WHAT`."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback

from jaxrl_single import workdir
from jaxrl_single.supervise import child, lock, processes


def command(root, name, what):
    """argv of a process that runs one of the functions below."""
    return (sys.executable, str(pathlib.Path(__file__)), str(root), name, what)


def program(root, name, what, **fields):
    return processes.Program(name=name, argv=command(root, name, what), **fields)


def note(root, name, text):
    """Appends a line that the tests read."""
    with open(pathlib.Path(root) / f"{name}.notes", "a") as file:
        file.write(f"{text}\n")


def notes(root, name):
    path = pathlib.Path(root) / f"{name}.notes"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def wait_for_sampler(root, name):
    """So that a test of the trainer's end finds a sampler at work."""
    while name == "trainer" and not notes(root, "sampler"):
        time.sleep(0.01)


def serve(root, name):
    """A good process: beats, saves on SIGTERM, ends with 0."""
    stop = child.stop_on_signals()
    heartbeat = child.start(workdir.Workdir(root), name)
    note(root, name, f"started {os.getpid()}")
    while not stop():
        heartbeat.beat()
        time.sleep(0.02)
    note(root, name, "saved")


def finish(root, name):
    """Works for a moment and is done."""
    child.start(workdir.Workdir(root), name)
    wait_for_sampler(root, name)


def crash(root, name):
    """Fails, differently each time."""
    child.start(workdir.Workdir(root), name)
    wait_for_sampler(root, name)
    note(root, name, "started")
    number = len(notes(root, name))
    try:
        raise KeyError(f"cause {number}")
    except KeyError as error:
        raise ValueError(f"crash number {number}") from error


def give_up(root, name):
    """Ends with a message for people, after a library has printed its own view of the fault."""
    child.start(workdir.Workdir(root), name)
    wait_for_sampler(root, name)
    try:
        raise OSError("No space left on device")
    except OSError:
        traceback.print_exc()
    print("error: cannot save: No space left on device", file=sys.stderr)
    sys.exit(1)


def crash_when_stopped(root, name):
    serve(root, name)
    raise OSError("no space for the checkpoint")


def ignore_stop(root, name):
    heartbeat = child.start(workdir.Workdir(root), name)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(root, name, "started")
    while True:
        heartbeat.beat()
        time.sleep(0.02)


def hang(root, name):
    """Stops to beat, in a function that the stack must show."""
    child.start(workdir.Workdir(root), name)
    wait_for_ever_on_a_lock()


def wait_for_ever_on_a_lock():
    while True:
        time.sleep(0.1)


def serve_with_grandchild(root, name):
    """Has a child of its own, which does not watch its parent."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note(root, name, f"grandchild {grandchild.pid}")
    serve(root, name)


def hold_lock(root, name):
    with lock.hold(workdir.Workdir(root)):
        note(root, name, "held")
        time.sleep(60)


def supervise(root, name):
    """A parent with two children, like `run.local`."""
    with lock.hold(workdir.Workdir(root)) as cleaned:
        note(root, name, f"cleaned {len(cleaned)}")
        outcome = processes.Supervisor(
            workdir.Workdir(root),
            [
                program(root, "sampler", "serve_with_grandchild", max_restarts=3),
                program(root, "trainer", "serve", main=True),
            ],
            heartbeat_s=30.0,
            stop_timeout_s=10.0,
            poll_s=0.05,
        ).run()
    print(outcome.message, file=sys.stderr)
    sys.exit(outcome.exit_code)


if __name__ == "__main__":
    globals()[sys.argv[3]](sys.argv[1], sys.argv[2])
