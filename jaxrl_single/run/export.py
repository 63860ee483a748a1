"""Turns the trajectories of a run into JSON lines: python -m jaxrl_single.run.export WORKDIR

    --form=tokens     one trajectory a line, every field and array; null for what was not recorded
    --form=messages   {"id", "task_id", "messages": [{"role", "content"}], "reward", ...}

What is left of a run, and why, is said on standard error; see docs/evidence.md.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TextIO

from jaxrl_single import atomic, store, types, workdir
from jaxrl_single.report import left
from jaxrl_single.run import command_line

FORMS = {"tokens": store.to_tokens, "messages": store.to_messages}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", metavar="WORKDIR")
    parser.add_argument("--form", choices=sorted(FORMS), default="tokens")
    parser.add_argument("--split", choices=types.SPLITS, default="train")
    parser.add_argument("--output", default="-", help="a file; - is standard output")
    args = parser.parse_args()
    return command_line.tool(lambda: _export(args))


def _export(args: argparse.Namespace) -> int:
    paths = workdir.Workdir(args.workdir)
    run_id = workdir.run_id_of(paths)
    print(left.census(paths, args.split), file=sys.stderr)
    with _opened(args.output) as output:
        skipped = export(paths, run_id, args.split, FORMS[args.form], output)
    return 1 if skipped else 0


@contextlib.contextmanager
def _opened(output: str) -> Iterator[TextIO]:
    """Standard output, or a file that comes whole or not at all."""
    if output == "-":
        yield sys.stdout
        return
    with atomic.replacing(output) as writing, open(writing, "w") as file:
        yield file


def export(paths: workdir.Workdir, run_id: str, split: str, form, output) -> int:
    """Writes one line per trajectory; returns how many files could not be used."""
    skipped = 0
    for path in store.all_files(paths.trajectories, split):
        try:
            trajectory = store.decode(path.read_bytes())
            if trajectory.run_id != run_id:
                raise types.InvalidTrajectory(f"it is of run {trajectory.run_id}, not {run_id}")
        except FileNotFoundError:  # trained and covered in this very moment
            continue
        except types.InvalidTrajectory as error:
            print(f"{path}: {error}", file=sys.stderr)
            skipped += 1
            continue
        output.write(json.dumps(workdir.plain(form(trajectory)), allow_nan=False) + "\n")
    return skipped


if __name__ == "__main__":
    sys.exit(main())
