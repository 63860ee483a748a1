"""Answers a file of prompts with a Hugging Face checkpoint; a rerun makes what is missing.

    python -m jaxrl_single.run.generate --model=DIR --input=prompts.jsonl --output=out.jsonl

What a prompt looks like is told in jaxrl_single/lab/prompts_file.py, what an answer looks like in
jaxrl_single/lab/generate.py. The last line on standard output is
{"tokens_per_s": ..., "generated_tokens": ..., "compile_s": ..., "peak_rss_mb": ...}.
"""

import argparse
import dataclasses
import os
import sys

from jaxrl_single.report import bar
from jaxrl_single.run import child_process, offline


def main() -> int:
    os.environ.update(child_process.cache_env())
    from jaxrl_single.lab import generate  # imports jax

    args = vars(_parser(generate.Sampling).parse_args())
    files = [args.pop(name) for name in ("model", "input", "output")]
    machine = {name: args.pop(name) for name in ("num_slots", "dtype")}

    def answer() -> dict[str, float]:
        with bar.Bar("answers", sys.stderr) as shown:
            sampling = generate.Sampling(**args)
            return generate.generate(*files, sampling, report=shown.show, **machine)

    return offline.run(answer)


def _parser(sampling: type) -> argparse.ArgumentParser:
    parser = offline.parser(__doc__)
    for field in dataclasses.fields(sampling):
        kind = {"action": "store_true"} if field.default is False else {"type": type(field.default)}
        parser.add_argument(f"--{field.name}", default=field.default, **kind)
    parser.add_argument("--num_slots", type=int, default=64, help="answers sampled together")
    return parser


if __name__ == "__main__":
    sys.exit(main())
