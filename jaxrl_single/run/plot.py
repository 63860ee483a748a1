"""Draws runs into one picture, a colour for each.

    python -m jaxrl_single.run.plot WORKDIR [WORKDIR ...] --output=FILE.png

Success in training and on held-out tasks, and further metrics over the steps of RL. Runs may be
under way. The ending of the file decides the format (png, svg, pdf; none is png). Needs
matplotlib: pip install -e ".[plot]".
"""

import argparse
import pathlib
import sys

from jaxrl_single import atomic, workdir
from jaxrl_single.report import plot


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdirs", metavar="WORKDIR", nargs="+", type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument(
        "--metrics",
        default=",".join(plot.METRICS),
        help="comma list of further panels; names of jaxrl_single/metrics/names.py",
    )
    parser.add_argument("--smooth", type=int, default=10, help="steps in the mean of a line")
    arguments = parser.parse_args()
    metrics = tuple(filter(None, arguments.metrics.split(",")))
    try:
        figure = plot.draw(arguments.workdirs, metrics=metrics, smooth=arguments.smooth)
        with atomic.replacing(arguments.output) as writing:
            form = arguments.output.suffix.removeprefix(".") or "png"
            figure.savefig(writing, dpi=120, format=form)
    except ModuleNotFoundError as error:
        print(f'error: no module {error.name!r}; pip install -e ".[plot]"', file=sys.stderr)
        return 2
    except (plot.CannotPlot, workdir.BrokenFile, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
