"""The supervisor with real processes that crash, hang, are killed, or do as they are told."""

import os
import signal
import subprocess
import time

import programs
import pytest

from jaxrl_single import workdir
from jaxrl_single.supervise import identity, lock, processes


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


def run(
    paths,
    sampler,
    trainer,
    *,
    tick=None,
    said=None,
    max_restarts=3,
    heartbeat_s=30.0,
    stop_timeout_s=5.0,
):
    """Runs two programs; pytest's main thread is the parent."""
    root = paths.root
    return processes.Supervisor(
        paths,
        [
            programs.program(root, "sampler", sampler, max_restarts=max_restarts),
            programs.program(root, "trainer", trainer, main=True),
        ],
        heartbeat_s=heartbeat_s,
        stop_timeout_s=stop_timeout_s,
        poll_s=0.02,
        tick=tick,
        say=(said if said is not None else []).append,
    ).run()


def wait_for(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


def when_started(paths, number, *, pause_s=0.0, times=1):
    """A tick that sends a signal to the parent, this process, when both children are at work."""
    sent = []

    def tick():
        ready = all(programs.notes(paths.root, name) for name in children(paths))
        if ready and len(sent) < times and (not sent or time.monotonic() > sent[-1] + pause_s):
            sent.append(time.monotonic())
            os.kill(os.getpid(), number)

    return tick


def children(paths):
    return workdir.read_json(paths.processes)["children"]


def test_the_end_of_the_trainer_is_the_end_of_the_run(paths):
    outcome = run(paths, "serve", "finish")

    assert outcome == processes.Outcome(0)
    assert programs.notes(paths.root, "sampler")[-1] == "saved"  # SIGTERM, not SIGKILL
    assert not any(identity.is_alive(record) for record in children(paths).values())


def test_a_crash_of_the_trainer_ends_the_run_with_its_traceback_last(paths):
    outcome = run(paths, "serve", "crash")

    assert outcome.exit_code == 1
    assert outcome.message.startswith("trainer ended with exit code 1")
    assert str(paths.log("trainer")) in outcome.message
    assert "KeyError: 'cause 1'" in outcome.message  # the whole chain
    assert outcome.message.splitlines()[-1] == "ValueError: crash number 1"
    assert programs.notes(paths.root, "sampler")[-1] == "saved"


def test_what_a_trainer_says_to_people_comes_last(paths):
    outcome = run(paths, "serve", "give_up")

    assert outcome.exit_code == 1
    assert "Traceback" not in outcome.message
    assert outcome.message.splitlines() == [
        "trainer ended with exit code 1",
        f"its log: {paths.log('trainer')}",
        "error: cannot save: No space left on device",
    ]


def test_a_sampler_that_keeps_crashing_ends_the_run_with_the_first_traceback(paths):
    said = []
    outcome = run(paths, "crash", "serve", said=said)

    assert outcome.exit_code == 1
    assert len(programs.notes(paths.root, "sampler")) == 4  # three restarts
    assert [line.split("; ")[1] for line in said[:3]] == [f"restart {n} of 3" for n in (1, 2, 3)]
    assert outcome.message.count("sampler ended with exit code 1") == 4
    assert outcome.message.splitlines()[-1] == "ValueError: crash number 1"
    assert programs.notes(paths.root, "trainer")[-1] == "saved"  # nothing learnt is lost
    assert children(paths)["sampler"]["restarts"] == 3


def test_a_killed_sampler_is_started_again(paths):
    killed = []

    def kill_two_then_stop():
        starts = [n for n in programs.notes(paths.root, "sampler") if n.startswith("started")]
        pid = int(starts[-1].split()[1]) if starts else None
        if len(killed) == 2 and pid not in (None, *killed):
            os.kill(os.getpid(), signal.SIGTERM)
            killed.append(pid)
        elif len(killed) < 2 and pid not in (None, *killed):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    said = []
    outcome = run(paths, "serve", "serve", tick=kill_two_then_stop, said=said)

    assert outcome == processes.Outcome(0)
    assert "sampler was killed by signal 9 (SIGKILL); restart 1 of 3" in said
    assert len(set(killed)) == 3
    assert children(paths)["sampler"]["restarts"] == 2


def test_a_killed_trainer_ends_the_run(paths):
    def kill():
        pid = children(paths)["trainer"]["pid"]
        if programs.notes(paths.root, "trainer"):
            os.kill(pid, signal.SIGKILL)

    outcome = run(paths, "serve", "serve", tick=kill)

    assert outcome.exit_code == 1
    assert outcome.message.startswith("trainer was killed by signal 9 (SIGKILL)")


def test_sigterm_lets_the_trainer_save_and_ends_with_0(paths):
    before = signal.getsignal(signal.SIGTERM)
    tick = when_started(paths, signal.SIGTERM, times=3)  # in a burst, as `timeout` does

    assert run(paths, "serve", "serve", tick=tick) == processes.Outcome(0)

    assert programs.notes(paths.root, "trainer")[-1] == "saved"
    assert programs.notes(paths.root, "sampler")[-1] == "saved"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_failure_while_stopping_is_told(paths):
    tick = when_started(paths, signal.SIGINT)
    outcome = run(paths, "serve", "crash_when_stopped", tick=tick)

    assert outcome.exit_code == 1
    assert outcome.message.splitlines()[-1] == "OSError: no space for the checkpoint"


def test_a_trainer_that_does_not_stop_is_killed(paths):
    tick = when_started(paths, signal.SIGTERM)
    outcome = run(paths, "serve", "ignore_stop", tick=tick, stop_timeout_s=0.5)

    assert outcome.exit_code == 1
    assert "trainer did not stop within 0.5 s" in outcome.message
    assert not any(identity.is_alive(record) for record in children(paths).values())


def test_a_second_request_does_not_wait(paths):
    tick = when_started(paths, signal.SIGINT, times=2, pause_s=1.1)
    outcome = run(paths, "serve", "ignore_stop", tick=tick, stop_timeout_s=1000.0)

    assert outcome.exit_code == 1
    assert "trainer was killed before it had stopped, at the second request" in outcome.message


def test_a_silent_process_is_killed_and_its_stack_is_shown(paths):
    outcome = run(paths, "hang", "serve", heartbeat_s=4.0, max_restarts=0)

    assert outcome.exit_code == 1
    assert "sampler gave no sign of life for" in outcome.message
    assert "wait_for_ever_on_a_lock" in outcome.message


def test_a_broken_display_does_not_end_the_run(paths):
    said = []

    def tick():
        raise RuntimeError("the terminal is gone")

    assert run(paths, "serve", "finish", tick=tick, said=said).exit_code == 0
    assert sum("the terminal is gone" in line for line in said) == 1


def test_a_program_that_does_not_exist_leaves_no_process(paths):
    root = paths.root
    supervisor = processes.Supervisor(
        paths,
        [
            programs.program(root, "sampler", "serve"),
            processes.Program(name="trainer", argv=(str(root / "missing"),), main=True),
        ],
        heartbeat_s=30.0,
        stop_timeout_s=5.0,
    )
    with pytest.raises(FileNotFoundError, match="missing"):
        supervisor.run()
    assert not any(identity.is_alive(record) for record in children(paths).values())


@pytest.fixture
def parent(paths):
    """A parent process with a trainer, a sampler, and a child of the sampler, all at work."""
    process = subprocess.Popen(
        programs.command(paths.root, "parent", "supervise"), stderr=subprocess.PIPE, text=True
    )
    for name in ("trainer", "sampler"):
        wait_for(lambda name=name: any("started" in n for n in programs.notes(paths.root, name)))
    yield process
    process.kill()
    process.wait()
    process.stderr.close()


def grandchild(paths):
    return identity.describe(int(programs.notes(paths.root, "sampler")[0].split()[1]))


def test_no_child_outlives_a_killed_parent(paths, parent):
    records = children(paths).values()
    assert all(identity.is_alive(record) for record in records)
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    wait_for(lambda: not any(identity.is_alive(record) for record in records), 10.0)
    assert not workdir.is_running(paths)  # a rerun may begin


def test_a_rerun_ends_what_a_killed_parent_left(paths, parent):
    left = grandchild(paths)  # does not watch its parent
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert identity.is_alive(left)

    with lock.hold(paths) as cleaned:
        assert not identity.is_alive(left)
        assert any("of its sampler" in line and str(left["pid"]) in line for line in cleaned)
    assert lock.reclaim(paths) == []


def test_sigterm_to_the_parent_ends_everything_with_0(paths, parent):
    records = [*children(paths).values(), grandchild(paths)]
    parent.send_signal(signal.SIGTERM)

    assert parent.wait(timeout=20) == 0
    assert programs.notes(paths.root, "trainer")[-1] == "saved"
    assert not any(identity.is_alive(record) for record in records)
    assert not workdir.is_running(paths)
