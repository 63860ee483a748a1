"""Prints the table of algorithms as Markdown, as it stands in docs/algorithms.md.

python -m jaxrl_single.run.table
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from jaxrl_single.algorithms import parts, table
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.run import command_line

_HEADER = ("name", "advantage", "keep rule", "objective", "reduction", "needs", "paper")
_RULE = "|" + "---|" * len(_HEADER)


def markdown() -> str:
    """One line per row of `algorithms/table.py`, with the names that a config chooses by."""
    lines = [_line(_HEADER), _RULE]
    lines += [_line(_cells(row)) for row in table.TABLE.values()]
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(row: row_lib.Algorithm) -> tuple[str, ...]:
    advantage = _name(parts.ADVANTAGES, row.advantage)
    if row.whitening is not None:
        advantage += f", whitened over {_name(parts.WHITENINGS, row.whitening)}"
    keep_rule = _name(parts.KEEP_RULES, row.keep_rule)
    if row.correction is not None:
        keep_rule += f" x {_name(parts.CORRECTIONS, row.correction)}"
    objective = " + ".join((_name(parts.OBJECTIVES, row.objective), *row.terms))
    paper = re.sub(r"arXiv (\d{4}\.\d{5})", r"[\1](https://arxiv.org/abs/\1)", row.paper)
    needs = ", ".join(row.needs)
    return f"`{row.name}`", advantage, keep_rule, objective, row.reduction, needs, paper


def _name(known: Mapping[str, parts.Part], part: parts.Part) -> str:
    """The name of a part, whatever the constants that its row gives it."""
    of_part = (part.function, part.kernels)
    return next(name for name, one in known.items() if (one.function, one.kernels) == of_part)


def main(argv: list[str]) -> None:
    del argv
    print(markdown())


if __name__ == "__main__":
    command_line.run(main)
