"""Runs of the real program for the end-to-end tests."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]


def command(workdir, *overrides, config="configs/tiny_sao.py:tiny", module="local"):
    return [
        sys.executable,
        "-m",
        f"jaxrl_single.run.{module}",
        f"--config={config}",
        f"--workdir={workdir}",
        *(f"--config.{override}" for override in overrides),
    ]


def environment():
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    # One device and optimised programs, as a user has them.
    env["XLA_FLAGS"] = ""
    del env["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    return env


def start(workdir, *overrides, **fields):
    """Starts a run; its output goes to WORKDIR.out beside the workdir."""
    with open(f"{workdir}.out", "ab") as output:
        return subprocess.Popen(
            command(workdir, *overrides, **fields),
            cwd=ROOT,
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(process, workdir, *, timeout_s=300, expect=0):
    """Waits for the end; shows the output when the exit code is another than expected."""
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    text = output(workdir)
    logs = "".join(p.read_text()[-3000:] for p in pathlib.Path(workdir, "logs").glob("*.log"))
    assert code == expect, f"exit code {code}, expected {expect}\n{text}\n{logs}"
    return text


def run(workdir, *overrides, expect=0, **fields):
    return finish(start(workdir, *overrides, **fields), workdir, expect=expect)


def output(workdir):
    return pathlib.Path(f"{workdir}.out").read_text()


def inspect(workdir):
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl_single.run.inspect", str(workdir)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def lines(path):
    path = pathlib.Path(path)
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_until(condition, what, *, timeout_s=240, process=None):
    """Polls; fails when the process has ended before."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        assert process is None or process.poll() is None, f"the run has ended before: {what}"
        time.sleep(0.05)
    return found


def rl_steps(workdir):
    return [r["step"] for r in lines(pathlib.Path(workdir, "metrics.jsonl")) if r["stage"] == "rl"]


def pids(workdir):
    record = read_json(pathlib.Path(workdir, "processes.json")) or {"children": {}}
    return {name: child["pid"] for name, child in record["children"].items()}


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def kill(pid):
    os.kill(pid, signal.SIGKILL)
