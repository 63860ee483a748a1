"""All algorithms on the same recorded trajectories, as a table."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxrl_single import atomic, workdir
from jaxrl_single.algorithms import table
from jaxrl_single.lab import records as records_lib
from jaxrl_single.lab import score as score_lib
from jaxrl_single.lab.records import BadRecord, Record

# With the signs of which coefficients all others are compared: the first that is applicable. Every
# file suffices for the last.
REFERENCES = ("sao", "reinforce")


@dataclasses.dataclass(frozen=True)
class Row:
    """One algorithm on one file.

    Attributes:
      algorithm: its name.
      missing: why it is not applicable, "" if it is; without it the numbers are NaN.
      kept: mean of the keep rule's output, without any correction.
      mass: sum of |coefficient| over the sampled tokens.
      other_mass: the same over draws, likeliest tokens and whole rows.
      agreement: of the tokens where this coefficient and the reference's are not 0, the share with
        the same sign; NaN without such a token.
      loss: of the whole batch.
    """

    algorithm: str
    missing: str = ""
    kept: float = math.nan
    mass: float = math.nan
    other_mass: float = math.nan
    agreement: float = math.nan
    loss: float = math.nan


def compare(records: Sequence[Record]) -> tuple[str, list[Row]]:
    """Applies every algorithm of the table, each from its first state.

    Returns:
      reference: the name of the algorithm whose signs the others are compared with.
      rows: in the order of the table.
    """
    scores: dict[str, score_lib.Scores | str] = {}
    for name, algorithm in table.TABLE.items():
        try:
            scores[name] = score_lib.score(algorithm, records)
        except BadRecord as error:
            scores[name] = str(error)
    found = [name for name in REFERENCES if not isinstance(scores[name], str)]
    if not found:
        raise ValueError(f"no algorithm is applicable: {scores[REFERENCES[-1]]}")
    signs = np.sign(scores[found[0]].per_token["coefficients"])
    return found[0], [_row(name, result, signs) for name, result in scores.items()]


def compare_file(
    path: os.PathLike[str] | str, output: os.PathLike[str] | str | None, overrides: dict[str, Any]
) -> str:
    """The table of a file as text; with `output` its rows are also written as JSON lines.

    Raises:
      ValueError: `overrides` are given, which are of one algorithm; or no line can be scored.
      records.BadRecord, OSError: as `records.read`.
    """
    if overrides:
        raise ValueError(f"--set={next(iter(overrides))}: set needs one algorithm, not all")
    reference, rows = compare(records_lib.read(path))
    if output is not None:
        lines = (json.dumps(_plain(row, reference), allow_nan=False) + "\n" for row in rows)
        with atomic.replacing(output) as writing:
            writing.write_text("".join(lines), encoding="utf-8")
    return "\n".join(_text(reference, rows))


def _row(name: str, result: score_lib.Scores | str, signs: np.ndarray) -> Row:
    if isinstance(result, str):
        return Row(name, missing=result)
    coefficients = result.per_token["coefficients"]
    products = np.sign(coefficients) * signs
    both = products != 0
    rest = [x for key, x in result.per_token.items() if key.endswith("_coefficients")]
    return Row(
        name,
        kept=result.metrics["keep/fraction"],
        mass=float(np.abs(coefficients).sum()),
        other_mass=float(sum(np.abs(x).sum() for x in rest)),
        agreement=float((products[both] > 0).mean()) if both.any() else math.nan,
        loss=result.loss,
    )


def _plain(row: Row, reference: str) -> dict[str, Any]:
    values = workdir.plain(dataclasses.asdict(row))
    return values | {"applicable": not row.missing, "reference": reference}


def _text(reference: str, rows: list[Row]) -> Iterator[str]:
    yield f"signs are compared with those of {reference}"
    columns = ("kept", "mass", "other mass", "same sign", "loss")
    yield f"{'algorithm':24}" + "".join(f"{column:>13}" for column in columns)
    for row in rows:
        if not row.missing:
            numbers = (row.kept, row.mass, row.other_mass, row.agreement, row.loss)
            yield f"{row.algorithm:24}" + "".join(f"{_number(x):>13}" for x in numbers)
    for row in rows:
        if row.missing:
            yield f"{row.algorithm:24} not applicable: {row.missing}"


def _number(x: float) -> str:
    return "-" if math.isnan(x) else f"{x:.4g}"
