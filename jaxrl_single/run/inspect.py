"""Prints the state of a run as one JSON object: python -m jaxrl_single.run.inspect WORKDIR

run_id, step, policy_version, params_sha256, trajectories {written, trained, dropped_stale,
errors, pending}, evals [{stage, step, policy_version, n, success, ci_low, ci_high}]
"""

import argparse
import json
import sys

from jaxrl_single import workdir
from jaxrl_single.report import inspect
from jaxrl_single.run import command_line


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", metavar="WORKDIR")
    paths = workdir.Workdir(parser.parse_args().workdir)

    def show() -> None:
        print(json.dumps(workdir.plain(inspect.inspect(paths)), indent=2, allow_nan=False))

    return command_line.tool(show)


if __name__ == "__main__":
    sys.exit(main())
