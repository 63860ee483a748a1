"""Answers a file of prompts with a Hugging Face checkpoint; a rerun makes what is missing.

    python -m jaxrl_single.run.generate --model=DIR --input=prompts.jsonl --output=out.jsonl

What a prompt looks like is told in jaxrl_single/lab/prompts_file.py, what an answer looks like in
jaxrl_single/lab/generate.py. The last line on standard output is
{"tokens_per_s": ..., "generated_tokens": ..., "compile_s": ..., "peak_rss_mb": ...}.
"""

import argparse
import dataclasses
import json
import os
import sys

from jaxrl_single import workdir
from jaxrl_single.models import config
from jaxrl_single.report import bar
from jaxrl_single.run import child_process


def main() -> int:
    os.environ.update(child_process.cache_env())
    from jaxrl_single.lab import generate  # imports jax

    args = vars(_parser(generate.Sampling).parse_args())
    files = [args.pop(name) for name in ("model", "input", "output")]
    machine = {name: args.pop(name) for name in ("num_slots", "dtype")}
    try:
        with bar.Bar("answers", sys.stderr) as shown:
            sampling = generate.Sampling(**args)
            summary = generate.generate(*files, sampling, report=shown.show, **machine)
    except (ValueError, OSError, workdir.CannotWrite) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    print(json.dumps(summary))
    return 0


def _parser(sampling: type) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "input", "output"):
        parser.add_argument(f"--{name}", required=True)
    for field in dataclasses.fields(sampling):
        kind = {"action": "store_true"} if field.default is False else {"type": type(field.default)}
        parser.add_argument(f"--{field.name}", default=field.default, **kind)
    parser.add_argument("--num_slots", type=int, default=64, help="answers sampled together")
    parser.add_argument("--dtype", choices=config.DTYPES, help="default: the checkpoint's own")
    return parser


if __name__ == "__main__":
    sys.exit(main())
