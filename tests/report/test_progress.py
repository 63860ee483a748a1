"""What a person sees while a run runs: in a real pseudo-terminal, in a pipe, on a broken pipe."""

import io
import os
import pty
import select
import subprocess
import sys

import pytest

from jaxrl_single import workdir
from jaxrl_single.metrics import writer
from jaxrl_single.report import progress, snapshot, wording

METRICS = {
    "episode/reward": 0.625,
    "staleness/mean": 1.75,
    "staleness/max": 4,
    "keep/fraction": 0.9876,
    "critic/explained_variance": float("nan"),
    "speed/trainer_tokens_per_s": 4321.4,
    "speed/sampler_tokens_per_s": 1234.5,
}


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


@pytest.fixture
def clock(monkeypatch):
    """Makes the looks of a display and the lines of a writer one call apart in time."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(writer.time, "time", lambda: now[0])
    return now


def test_plain_lines_hold_what_matters(paths, clock):
    stream = io.StringIO()
    with progress.Display(paths, stream) as display:
        display.tick()  # nothing is there yet
        workdir.write_status(paths, workdir.Status("warm_start", 0, 40, text="playing"))
        clock[0] += 2
        display.tick()
        metrics = writer.MetricsWriter(paths, "rl")
        for step in range(1, 31):
            clock[0] += 3.0
            metrics.write(step, METRICS)
            workdir.write_status(paths, workdir.Status("rl", step, 150, policy_version=step))
            display.tick()
        workdir.record_eval(paths, workdir.Eval("rl", 25, 26, 128, 0.71, 0.62, 0.78))
    metrics.close()

    lines = stream.getvalue().splitlines()
    assert lines[0] == "warm start (playing)  step 0/40"
    assert lines[1].startswith("RL  step 1/150  reward 0.62  staleness 1.8 (max 4)  kept 0.988")
    assert "explained variance -  tokens/s 4321 trained, 1234 sampled" in lines[1]
    assert lines[-2] == "held-out success, RL, step 25: 0.710 (0.620 to 0.780), 128 tasks"
    assert lines[-1].startswith("RL  step 30/150")
    # 3 s a step: the first line, one in every four steps (10 s), and the last one.
    assert len(lines) == 1 + 1 + 7 + 1 + 1
    assert lines[-1].endswith("held-out 0.71 (step 25)  left 6 min 00 s")


def test_evaluations_of_an_earlier_start_are_not_told_again(paths, clock):
    workdir.write_status(paths, workdir.Status("rl", 1, 5))
    workdir.record_eval(paths, workdir.Eval("warm_start", 0, 1, 512, 0.4, 0.3, 0.5))
    stream = io.StringIO()
    with progress.Display(paths, stream):
        pass
    assert "held-out success" not in stream.getvalue()


def test_looks_are_rare(paths, clock):
    workdir.write_status(paths, workdir.Status("rl", 1, 5))
    display = progress.Display(paths, io.StringIO())
    display.tick()
    paths.status.write_text("{")  # would be noticed
    display.tick()
    assert not display._off
    clock[0] += 5
    display.tick()
    assert display._off


def test_a_broken_file_stops_the_display_and_nothing_else(paths, clock):
    paths.status.write_text("{")
    stream = io.StringIO()
    with progress.Display(paths, stream) as display:
        display.tick()
        clock[0] += 100
        display.tick()
    assert stream.getvalue().count("the display stops") == 1


def test_nobody_reads(paths):
    workdir.write_status(paths, workdir.Status("rl", 1, 5))
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    with progress.Display(paths, stream) as display:
        display.say("gone")
        display.tick()
    assert display._off
    with pytest.raises(BrokenPipeError):  # it really was broken
        stream.close()


SHOWS = """
import sys, time
from jaxrl_single import workdir
from jaxrl_single.report import progress
with progress.Display(workdir.Workdir(sys.argv[1])) as display:
    display.tick()
    display.say("sampler [bold]died[/bold]; restart 1 of 3")
print("jax loaded" if "jax" in sys.modules else "no jax")
"""


def in_terminal(code, argument):
    """What a program prints into a pseudo-terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, argument], stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    text = b""
    while True:
        if not select.select([ours], [], [], 30.0)[0]:
            break
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not data:
            break
        text += data
    os.close(ours)
    assert process.wait() == 0
    return text.decode()


def test_a_terminal_gets_a_live_table(paths):
    metrics = writer.MetricsWriter(paths, "rl")
    metrics.write(30, METRICS)
    metrics.close()
    workdir.write_status(paths, workdir.Status("rl", 30, 120, policy_version=31))

    text = in_terminal(SHOWS, str(paths.root))

    assert "30/120" in text
    assert "1.8 (max 4)" in text
    assert "━" * 8 + "╌" * 22 in text  # a quarter of thirty, rounded to even
    assert "sampler [bold]died[/bold]; restart 1 of 3" in text  # no markup of ours
    assert "\x1b[" in text
    assert "no jax" in text


def test_time_left_is_the_median_pace(paths, clock):
    metrics = writer.MetricsWriter(paths, "rl")
    for step, pause in enumerate([0, 60, 2, 2, 3600, 2, 2], start=1):  # compilation, restart
        clock[0] += pause
        metrics.write(step, {})
    metrics.close()
    workdir.write_status(paths, workdir.Status("rl", 7, 17))
    assert snapshot.Reader(paths).snapshot().seconds_left == 10 * 2.0


def test_the_reader_follows_a_run_that_goes_back(paths, clock):
    reader = snapshot.Reader(paths)
    assert reader.snapshot() is None
    metrics = writer.MetricsWriter(paths, "rl")
    for step in range(1, 6):
        clock[0] += 1
        metrics.write(step, {"episode/reward": 0.0})
    metrics.close()
    workdir.write_status(paths, workdir.Status("rl", 5, 10))
    assert reader.snapshot().metrics["step"] == 5

    resumed = writer.MetricsWriter(paths, "rl", resume_step=2)
    resumed.write(3, {"episode/reward": 1.0})
    workdir.write_status(paths, workdir.Status("rl", 3, 10))
    found = reader.snapshot()
    assert (found.metrics["step"], found.metrics["episode/reward"]) == (3, 1.0)
    resumed.write(4, {"episode/reward": 0.5})
    resumed.close()
    assert reader.snapshot().metrics["step"] == 4


def test_a_tail_leaves_half_lines_for_later(tmp_path):
    path = tmp_path / "x.jsonl"
    tail = snapshot.Tail(path)
    assert tail.new() == []
    path.write_text('{"a": 1}\n{"a": ')
    assert tail.new() == [{"a": 1}]
    with open(path, "a") as file:
        file.write("2}\n")
    assert tail.new() == [{"a": 2}]
    assert tail.new() == []


def test_a_tail_notices_a_file_put_in_place_of_the_old_one(tmp_path):
    path, other = tmp_path / "x.jsonl", tmp_path / "y.jsonl"
    path.write_text('{"a": 1}\n')
    tail = snapshot.Tail(path)
    tail.new()
    other.write_text('{"a": 7}\n{"a": 8}\n{"a": 9}\n')
    other.rename(path)
    assert tail.new() == [{"a": 7}, {"a": 8}, {"a": 9}]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "-"), (0, "0 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")],
)
def test_durations(seconds, words):
    assert wording.duration(seconds) == words


def test_an_alarm_is_told_once_when_it_begins(paths, clock):
    stream = io.StringIO()
    metrics = writer.MetricsWriter(paths, "rl")
    with progress.Display(paths, stream) as display:
        for step in range(1, 31):
            clock[0] += 3.0
            metrics.write(step, {**METRICS, "episode/success": float(step < 8)})
            workdir.write_status(paths, workdir.Status("rl", step, 40))
            display.tick()
    with progress.Display(paths, again := io.StringIO()):
        pass
    metrics.close()
    told = [line for line in stream.getvalue().splitlines() if line.startswith("alarm ")]
    assert [line.split(":")[0] for line in told] == [
        "alarm no_success at RL step 17",
        "alarm success_fell at RL step 20",
    ]
    assert "  alarms no_success, success_fell  left" in stream.getvalue().splitlines()[-1]
    assert not any(line.startswith("alarm ") for line in again.getvalue().splitlines())
