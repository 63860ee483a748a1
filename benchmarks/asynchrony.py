"""Wall-clock of asynchronous against synchronous RL on the same number of trajectories.

python benchmarks/asynchrony.py --workdir=runs/asynchrony [--steps=30] [--latency=0.3]

Both runs use configs/tiny_sao.py with a tool that sleeps. Reported per RL step, after warm-up steps
in which programs compile: the synchronous run's two phases (rollout, training), what is ideal if
they overlap without cost (the longer of the two), and what the asynchronous run took. On one
machine the phases also compete for the cores, which the ideal leaves out.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
WARM_UP = 5  # RL steps that are not counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--latency", type=float, default=0.3, help="seconds of a tool call")
    arguments = parser.parse_args()
    sync = run("sync", arguments)
    local = run("local", arguments)
    rollout = statistics.mean(record["time/wait_s"] for record in sync)
    training = statistics.mean(record["time/train_s"] for record in sync)
    sync_step, local_step = seconds_per_step(sync), seconds_per_step(local)
    result = {
        "trajectories": 64 * len(sync),
        "sync_step_s": sync_step,
        "sync_rollout_s": rollout,
        "sync_train_s": training,
        "async_step_s": local_step,
        "speedup": sync_step / local_step,
        "ideal_speedup": sync_step / (sync_step - min(rollout, training)),
        "async_staleness": statistics.mean(record["staleness/mean"] for record in local),
    }
    print(json.dumps({name: round(value, 3) for name, value in result.items()}, indent=2))


def run(mode: str, arguments: argparse.Namespace) -> list[dict]:
    """Metrics of the counted RL steps of a fresh run."""
    workdir = arguments.workdir / mode
    if workdir.exists():
        sys.exit(f"{workdir} exists; choose another --workdir")
    overrides = {
        "mode": mode,
        "rl.num_steps": WARM_UP + arguments.steps,
        "rl.critic_only_steps": 1,
        "env.tool_latency_s": arguments.latency,
        "warm_start.num_steps": 100,
        "value_pretraining.num_trajectories": 128,
        "value_pretraining.max_steps": 20,
        "eval.every_steps": 0,
        "eval.num_tasks": 64,
    }
    command = [
        sys.executable,
        "-m",
        "jaxrl_single.run.local",
        "--config=configs/tiny_sao.py",
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in overrides.items()),
    ]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [r for r in records if r["stage"] == "rl" and r["step"] >= WARM_UP]


def seconds_per_step(records: list[dict]) -> float:
    return (records[-1]["time"] - records[0]["time"]) / (len(records) - 1)


if __name__ == "__main__":
    main()
