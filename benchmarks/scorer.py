"""Peak memory and seconds of `run.score`, by the number of trajectories.

    python benchmarks/scorer.py [--trajectories=128,512,2048] [--algorithms=grpo,branching_bpo]

Each file holds trajectories of 1,000 tokens, half of them sampled, in groups of eight; seven of a
group were forked from the first. Each cell is a process of its own: its peak resident memory, and
its seconds with start and compilation.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

NUM_TOKENS = 1000
GROUP = 8
_CHILD = """
import sys, time
from jaxrl_single.lab import resumable
from jaxrl_single.run import score
start = time.time()
code = score.main()
print(resumable.peak_rss_mb(), time.time() - start)
sys.exit(code)
"""


def write(path: pathlib.Path, num_trajectories: int) -> None:
    """A file of random trajectories, the same for the same number."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as lines:
        for number in range(num_trajectories):
            first = number - number % GROUP
            record = {
                "id": number,
                "task_id": first,
                "reward": float(draw.random() < 0.5),
                "action_mask": [at // 50 % 2 for at in range(NUM_TOKENS)],
                "policy_logprobs": [round(-draw.expovariate(1.0), 4) for _ in range(NUM_TOKENS)],
                "rollout_logprobs": [round(-draw.expovariate(1.0), 4) for _ in range(NUM_TOKENS)],
            }
            if number != first:
                record |= {"parent_id": first, "fork_index": draw.randrange(0, NUM_TOKENS // 2)}
            lines.write(json.dumps(record) + "\n")


def measure(path: pathlib.Path, algorithm: str) -> tuple[float, float]:
    """Peak MB and seconds of one run of the scorer."""
    flags = [f"--algorithm={algorithm}", f"--input={path}", f"--output={path}.out"]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *flags], capture_output=True, text=True, check=True
    )
    peak, seconds = done.stdout.split()[-2:]
    return float(peak), float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", default="128,512,2048")
    parser.add_argument("--algorithms", default="grpo,branching_bpo,rebel")
    args = parser.parse_args()
    sizes = [int(size) for size in args.trajectories.split(",")]
    print(f"{'peak MB (seconds)':20}" + "".join(f"{size:>16}" for size in sizes))
    with tempfile.TemporaryDirectory() as root:
        paths = {size: pathlib.Path(root, f"{size}.jsonl") for size in sizes}
        for size, path in paths.items():
            write(path, size)
        for algorithm in args.algorithms.split(","):
            cells = (measure(paths[size], algorithm) for size in sizes)
            row = "".join(f"{peak:>9.0f} ({seconds:.1f})" for peak, seconds in cells)
            print(f"{algorithm:20}{row}", flush=True)


if __name__ == "__main__":
    main()
