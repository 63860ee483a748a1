"""Every algorithm from one warm start on the same number of trajectories: a table of results.

python benchmarks/algorithms.py --root=runs/algorithms [--names=sao,klpo] [--seeds=0,1,2] [--report]

All runs use the harder task (`configs/tiny_sao_hard.py`) and begin from one warm-started policy,
that of the run ROOT/warm. Rows with a critic sample rollouts for its pretraining besides; no row
gets more trajectories for RL than another. A run that is done is skipped and one that was
interrupted goes on, so the command may be repeated; --report prints the table and runs nothing.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from jaxrl_single import workdir

ROOT = pathlib.Path(__file__).parents[1]
NAMES = (
    "sao",
    "flash_reinforce",
    "bellman_bpo",
    "klpo",
    "grpo",
    "grpo_dis",
    "vapo",
    "rloo",
    "running_mean",
    "spo",
    "reinforce",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--names", default=",".join(NAMES), help="comma list of configs/tiny_NAME")
    parser.add_argument("--seeds", default="0,1,2", help="comma list")
    parser.add_argument("--report", action="store_true", help="only print what is done")
    arguments = parser.parse_args()
    runs = [
        (seed, name, arguments.root.absolute() / name / f"seed{seed}")
        for seed in map(int, arguments.seeds.split(","))
        for name in arguments.names.split(",")
    ]
    if not arguments.report:
        warm = arguments.root.absolute() / "warm"
        short = {"rl.num_steps": 1, "rl.critic_only_steps": 0, "value_pretraining.max_steps": 0}
        run("sao_hard", warm, short)
        for seed, name, directory in runs:
            run(config_of(name), directory, {"seed": seed, "warm_start.workdir": warm})
            print(line(name, [facts(directory)]), flush=True)
    print(table(runs))


def config_of(name: str) -> str:
    return "sao_hard" if name == "sao" else name


def run(config: str, directory: pathlib.Path, overrides: dict) -> None:
    """Runs to the end unless it is there; what it prints goes to DIRECTORY.out."""
    if facts(directory):
        return
    command = [
        sys.executable,
        "-m",
        "jaxrl_single.run.local",
        f"--config=configs/tiny_{config}.py",
        f"--workdir={directory}",
        *(f"--config.{name}={value}" for name, value in overrides.items()),
    ]
    directory.parent.mkdir(parents=True, exist_ok=True)
    output = directory.with_name(directory.name + ".out")
    with output.open("ab") as out:
        code = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT).returncode
    if code:
        print(f"{config} in {directory} ended with exit code {code}; see {output}", flush=True)


def facts(directory: pathlib.Path) -> dict | None:
    """What the table shows of a finished run; None while it is not finished."""
    paths = workdir.Workdir(directory)
    success = {e.stage: e.success for e in workdir.read_evals(paths)}
    if "final" not in success:
        return None
    lines = [json.loads(text) for text in paths.metrics.read_text().splitlines()]
    steps = [record for record in lines if record["stage"] == "rl"]

    def mean(name: str) -> float:
        found = [r[name] for r in steps if r.get(name) is not None]
        return statistics.mean(found) if found else float("nan")

    return {
        "before": success["warm_start"],
        "after": success["final"],
        "kept": mean("keep/fraction"),
        "staleness": mean("staleness/mean"),
        "seconds": steps[-1]["time"] - steps[0]["time"] if steps else 0.0,
        "steps": len(steps),
    }


def table(runs: list[tuple[int, str, pathlib.Path]]) -> str:
    rows = [
        "| algorithm | seeds | before | after | kept | staleness | seconds of RL |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(name for _, name, _ in runs):
        found = [facts(directory) for _, other, directory in runs if other == name]
        rows.append(line(name, [fact for fact in found if fact]))
    return "\n".join(rows)


def line(name: str, found: list[dict]) -> str:
    """Means over seeds; success also seed by seed."""
    if not all(found) or not found:
        return f"| {name} | 0 | | not finished | | | |"
    each = ", ".join(f"{fact['after']:.3f}" for fact in found)
    mean = {key: statistics.mean(fact[key] for fact in found) for key in found[0]}
    return (
        f"| {name} | {len(found)} | {mean['before']:.3f} | {mean['after']:.3f} ({each}) "
        f"| {mean['kept']:.3f} | {mean['staleness']:.2f} | {mean['seconds']:.0f} |"
    )


if __name__ == "__main__":
    main()
