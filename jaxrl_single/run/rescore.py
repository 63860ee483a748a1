"""Scores trajectories of a run again, under weights of that run, for run.score.

    python -m jaxrl_single.run.rescore WORKDIR --output=RECORDS.jsonl [--step=K | --version=N|best]
        [--trajectories=10,20] [--split=train|eval]

Takes the trajectories that are left of the run, or of them those that the named steps trained, and
writes them as records (jaxrl_single/lab/records.py) with the policy's log-probs and entropies, the
critic's values, the log-probs of the reference (the policy that RL began with), and the policy's
log-probs of what the sampler recorded beside the tokens. The weights are those of the newest
checkpoint, of the checkpoint of step K, or of a published or the best version of the policy.
"""

import argparse
import json
import logging
import sys

from jaxrl_single import atomic, types, workdir
from jaxrl_single.lab import own_runs
from jaxrl_single.report import left
from jaxrl_single.run import child_process, command_line, run_source


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", metavar="WORKDIR")
    parser.add_argument("--output", required=True, metavar="RECORDS.jsonl")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--step", type=int, help="of a checkpoint; 0: what RL began with")
    weights.add_argument(
        "--version", type=run_source.version, metavar="N|best", help="the critic is the newest"
    )
    parser.add_argument("--trajectories", default="", metavar="STEPS", help="default: all left")
    parser.add_argument("--split", choices=types.SPLITS, default="train")
    args = parser.parse_args()
    from jaxrl_single import checkpoint  # imports jax
    from jaxrl_single.weights import base

    errors = (checkpoint.CheckpointError, base.InvalidWeights)
    return command_line.tool(lambda: _rescore(args), for_people=errors)


def _rescore(args: argparse.Namespace) -> None:
    from jaxrl_single.stages import build, rescoring  # imports jax

    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns that it will only read
    paths = workdir.Workdir(args.workdir)
    print(left.census(paths, args.split), file=sys.stderr)
    steps, tally = own_runs.parse_steps(args.trajectories), own_runs.Tally()
    found = own_runs.trajectories(paths.root, split=args.split, steps=steps, tally=tally)
    chosen = [trajectory for _, trajectory in found]
    if not chosen:
        raise ValueError(f"no trajectory is left to score, of split {args.split!r} and these steps")
    config = child_process.load_config(paths)
    weights = rescoring.weights_of(config, paths, step=args.step, version=args.version)
    scored = rescoring.make(config, weights)(chosen)
    with atomic.replacing(args.output) as writing, open(writing, "w", encoding="utf-8") as output:
        for trajectory, fields in zip(chosen, scored, strict=True):
            record = own_runs.record_of(trajectory) | own_runs.as_json(fields, trajectory)
            output.write(json.dumps(record, allow_nan=False) + "\n")
    settings = " ".join(f"--set={key}={value}" for key, value in build.overrides(config).items())
    print(
        f"{len(chosen)} records under the weights of {weights.where}; as the run scored them:\n"
        f"python -m jaxrl_single.run.score --algorithm={config.algorithm.name} {settings} "
        f"--input={args.output} --output=SCORES.jsonl"
    )


if __name__ == "__main__":
    sys.exit(main())
