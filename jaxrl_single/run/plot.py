"""Draws runs into one picture, a colour for each.

    python -m jaxrl_single.run.plot WORKDIR [WORKDIR ...] --output=FILE.png

Success in training and on held-out tasks, and further metrics over the steps of RL. Runs may be
under way. The ending of the file decides the format (png, svg, pdf; none is png). Needs
matplotlib: pip install -e ".[plot]".
"""

import argparse
import pathlib
import sys

from jaxrl_single import atomic
from jaxrl_single.report import plot
from jaxrl_single.run import command_line


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
    return command_line.tool(lambda: _plot(arguments), for_people=(plot.CannotPlot,))


def _plot(arguments: argparse.Namespace) -> None:
    metrics = tuple(filter(None, arguments.metrics.split(",")))
    figure = plot.draw(arguments.workdirs, metrics=metrics, smooth=arguments.smooth)
    with atomic.replacing(arguments.output) as writing:
        form = arguments.output.suffix.removeprefix(".") or "png"
        figure.savefig(writing, dpi=120, format=form)
    print(arguments.output)


if __name__ == "__main__":
    sys.exit(main())
