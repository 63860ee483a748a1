"""Turns rollouts of other systems into records that run.score reads.

    python -m jaxrl_single.run.import_records --from=store --input=WORKDIR --output=RECORDS.jsonl \
        [--steps=10,20]
    python -m jaxrl_single.run.import_records --from=trl --input=DUMP.jsonl --output=RECORDS.jsonl

verl and slime likewise. What is read of each is told in jaxrl_single/lab/dumps.py, of our own runs
in jaxrl_single/lab/own_runs.py, and what is written in jaxrl_single/lab/records.py. A dump knows
nothing of the policy to be scored: its policy_logprobs are the trainer's before the update, or else
the sampler's. Put yours in with --fields, a file of JSON lines {"id": ..., "policy_logprobs": ...}.
What is left of one of our runs, and what is known of it, is said on standard error.
"""

import argparse
import json
import sys

from jaxrl_single import atomic, workdir
from jaxrl_single.lab import dumps, own_runs
from jaxrl_single.report import left
from jaxrl_single.run import command_line


def main() -> int:
    args = _parser().parse_args()
    return command_line.tool(lambda: _import(args))


def _import(args: argparse.Namespace) -> None:
    try:
        records = list(_records(args))
    except ValueError as error:
        raise ValueError(f"{args.input}, {error}") from error
    if args.fields:
        dumps.add_fields(records, args.fields)
    with atomic.replacing(args.output) as writing, open(writing, "w", encoding="utf-8") as output:
        output.writelines(json.dumps(record, allow_nan=False) + "\n" for record in records)


def _records(args: argparse.Namespace):
    if args.source == "store":
        yield from _of_store(args)
        return
    options = {"reward_key": args.reward_key} if args.source == "slime" else {}
    for number, sample in enumerate(dumps.samples_of(args.input, args.source)):
        try:
            yield dumps.CONVERTERS[args.source](sample, number, **options)
        except ValueError as error:
            raise ValueError(f"sample {number}: {error}") from None


def _of_store(args: argparse.Namespace):
    paths, tally = workdir.Workdir(args.input), own_runs.Tally()
    if paths.run.exists():
        print(left.census(paths, args.split), file=sys.stderr)
    elif not (paths.root / args.split).is_dir():
        raise ValueError(f"there is no run here, and no folder {args.split!r} of trajectories")
    steps = own_runs.parse_steps(args.steps)
    yield from own_runs.from_store(args.input, split=args.split, steps=steps, tally=tally)
    if steps and not tally.records:
        raise ValueError(f"no trajectory of --steps={args.steps} is left")
    for note in own_runs.notes(tally):
        print(f"note: {note}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sources = ["store", *dumps.CONVERTERS]
    parser.add_argument("--from", dest="source", required=True, choices=sources)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--fields", metavar="FIELDS.jsonl", help="fields to put in, by id")
    parser.add_argument("--split", choices=("train", "eval"), default="train", help="of the store")
    parser.add_argument("--steps", default="", help="of the store: 10,20; default: all")
    parser.add_argument("--reward-key", default="", help="entry of slime's reward objects")
    return parser


if __name__ == "__main__":
    sys.exit(main())
