"""What it costs to keep the evidence of steps, measured within one run.

python benchmarks/evidence.py --workdir=runs/evidence [--steps=40] [--nth=10]

One run of configs/tiny_sao.py in mode=sync keeps every second step. The time of a step, without
waiting for its trajectories, is compared between the steps that keep and those that don't; a run
that keeps every nth pays an nth of the difference per step. Also the bytes of a kept step.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
WARM_UP = 4  # RL steps that are not counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--nth", type=int, default=10)
    arguments = parser.parse_args()
    records = run(arguments.workdir, arguments.steps)
    keeping, others = (
        [record for record in records if record["step"] % 2 == rest] for rest in (0, 1)
    )
    kept, plain = (statistics.median(map(seconds, part)) for part in (keeping, others))
    writing = statistics.median(map(beside, keeping)) - statistics.median(map(beside, others))
    last = max(record["step"] for record in keeping)
    samples = arguments.workdir / "samples" / f"{last}.safetensors"
    folder = arguments.workdir / "trajectories" / "kept" / "train" / f"{last:08d}-rl"
    result = {
        "steps that keep, and others": [len(keeping), len(others)],
        "step_that_keeps_s": kept,
        "other_step_s": plain,
        f"(difference) / {arguments.nth}, of a step": (kept - plain) / arguments.nth / plain,
        "written_beside_training_and_publishing_s": writing,
        f"that / {arguments.nth}, of a step": writing / arguments.nth / plain,
        "tokens": statistics.median(record["train/tokens"] for record in keeping),
        "evidence_bytes": samples.stat().st_size,
        "trajectories_bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }
    print(json.dumps(result, indent=2))


def run(workdir: pathlib.Path, steps: int) -> list[dict]:
    """Metrics of the counted RL steps of a fresh run."""
    if workdir.exists():
        sys.exit(f"{workdir} exists; choose another --workdir")
    overrides = {
        "mode": "sync",
        "rl.num_steps": WARM_UP + steps,
        "rl.critic_only_steps": 1,
        "trajectories.every_steps": 2,
        "batch.row_buckets": (64,),  # or steps of one and of two micro-batches are compared
        "env.tool_latency_s": 0.0,
        "warm_start.num_steps": 100,
        "warm_start.num_demonstrations": 1024,
        "value_pretraining.num_trajectories": 128,
        "value_pretraining.max_steps": 20,
        "eval.every_steps": 0,
        "eval.num_tasks": 16,
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
    return [r for r in records if r["stage"] == "rl" and r["step"] > WARM_UP]


def seconds(record: dict) -> float:
    """Of a step that had its trajectories."""
    return record["time/step_s"] - record["time/wait_s"]


def beside(record: dict) -> float:
    """Of a step, without waiting, training and publishing: where evidence is written."""
    return seconds(record) - record["time/train_s"] - record["time/publish_s"]


if __name__ == "__main__":
    main()
