"""Applies an algorithm to recorded trajectories of any system; needs no model.

    python -m jaxrl_single.run.score --algorithm=sao --input=IN.jsonl --output=OUT.jsonl
    python -m jaxrl_single.run.score --algorithm=all --input=IN.jsonl

IN.jsonl holds one trajectory a line, see jaxrl_single/lab/records.py; the whole file is one batch.
OUT.jsonl has, in the same order, {"id", "advantages", "weights", "coefficients"}, 0 where the mask
is 0, and the summary as its last line. A coefficient is minus the gradient of the loss by the
log-prob of the token. "all" prints a table of the algorithms that the file suffices for.
"""

import argparse
import sys

import jax

from jaxrl_single.algorithms import table
from jaxrl_single.lab import compare, records, score
from jaxrl_single.run import command_line


def main() -> int:
    args = _parser().parse_args()
    if args.x64:
        jax.config.update("jax_enable_x64", True)
    return command_line.tool(lambda: _score(args))


def _score(args: argparse.Namespace) -> None:
    overrides = score.parse_settings(args.set)
    try:
        if args.algorithm == "all":
            print(compare.compare_file(args.input, args.output, overrides))
        elif args.output is None:
            raise ValueError("--output is missing; only --algorithm=all does without")
        else:
            score.score_file(table.get(args.algorithm, overrides), args.input, args.output)
    except records.BadRecord as error:
        raise ValueError(f"{args.input}, {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--algorithm", required=True, help="all, or " + ", ".join(sorted(table.TABLE))
    )
    parser.add_argument("--input", required=True, metavar="IN.jsonl")
    parser.add_argument("--output", metavar="OUT.jsonl")
    settings = "keep_rule=icepop, keep_rule.low=0.5, objective.kernel=binary ...; repeatable"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=settings)
    parser.add_argument("--x64", action="store_true", help="compute in float64")
    return parser


if __name__ == "__main__":
    sys.exit(main())
