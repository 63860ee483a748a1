"""Log-probs and entropies of given token ids under a checkpoint; a rerun makes what is missing.

    python -m jaxrl_single.run.logprobs --model=DIR --input=ids.jsonl --output=out.jsonl

A line of the input is {"token_ids": [1, 2, 3]}; its line of the output is
{"logprobs": [null, ...], "entropies": [null, ...]}: natural logs and nats, an entry for each token,
null for the first, which nothing precedes. The last line on standard output is
{"tokens_per_s": ..., "scored_tokens": ..., "compile_s": ..., "peak_rss_mb": ...}.
"""

import os
import sys

from jaxrl_single.report import bar
from jaxrl_single.run import child_process, offline


def main() -> int:
    parser = offline.parser(__doc__)
    parser.add_argument("--chunk", type=int, default=512, help="tokens that are read together")
    args = parser.parse_args()
    os.environ.update(child_process.cache_env())
    from jaxrl_single.lab import logprobs  # imports jax

    def score() -> dict[str, float]:
        with bar.Bar("tokens", sys.stderr) as shown:
            return logprobs.score(
                args.model,
                args.input,
                args.output,
                dtype=args.dtype,
                chunk=args.chunk,
                report=shown.show,
                note=lambda text: print(f"note: {text}", file=sys.stderr),
            )

    return offline.run(score)


if __name__ == "__main__":
    sys.exit(main())
