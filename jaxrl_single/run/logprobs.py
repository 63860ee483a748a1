"""Log-probs and entropies of given token ids under a checkpoint; a rerun makes what is missing.

    python -m jaxrl_single.run.logprobs --model=DIR --input=ids.jsonl --output=out.jsonl

A line of the input is {"token_ids": [1, 2, 3]}; its line of the output is
{"logprobs": [null, ...], "entropies": [null, ...]}: natural logs and nats, an entry for each token,
null for the first, which nothing precedes. The last line on standard output is
{"tokens_per_s": ..., "scored_tokens": ..., "compile_s": ..., "peak_rss_mb": ...}.
"""

import argparse
import json
import os
import sys

from jaxrl_single import workdir
from jaxrl_single.models import config
from jaxrl_single.report import bar
from jaxrl_single.run import child_process


def main() -> int:
    args = _parser().parse_args()
    os.environ.update(child_process.cache_env())
    from jaxrl_single.lab import logprobs  # imports jax

    try:
        with bar.Bar("tokens", sys.stderr) as shown:
            summary = logprobs.score(
                args.model,
                args.input,
                args.output,
                dtype=args.dtype,
                chunk=args.chunk,
                report=shown.show,
                note=lambda text: print(f"note: {text}", file=sys.stderr),
            )
    except (ValueError, OSError, workdir.CannotWrite) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    print(json.dumps(summary))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "input", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--dtype", choices=config.DTYPES, help="default: the checkpoint's own")
    parser.add_argument("--chunk", type=int, default=512, help="tokens that are read together")
    return parser


if __name__ == "__main__":
    sys.exit(main())
