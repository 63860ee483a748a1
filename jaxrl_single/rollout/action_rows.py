"""What a sampler records besides the tokens: rows of types.ACTION_FIELDS, one per sampled token."""

from __future__ import annotations

import numpy as np

from jaxrl_single import types, wire


class ActionRows:
    """The rows of one episode, turn by turn; every turn must record the same."""

    def __init__(self):
        self._turns: list[dict[str, np.ndarray]] = []

    def append(self, completion: wire.Completion, *, where: str, sampled: bool) -> None:
        """Takes over the rows of an answer; of one without tokens there are none.

        Args:
          where: begins the messages of errors.
          sampled: the tokens come from a policy, so log-probs must be log-probs.

        Raises:
          ValueError: rows are missing, uneven or no log-probs; nothing was taken over.
        """
        given = {name: getattr(completion, name) for name in types.ACTION_FIELDS}
        arrays = {
            name: _array(rows, types.ACTION_FIELDS[name], f"{where}: {name}")
            for name, rows in given.items()
            if rows or (rows is not None and completion.tokens)
        }
        types.validate_rows(arrays, len(completion.tokens), where, sampled=sampled)
        if not completion.tokens:
            return
        if self._turns and _widths(arrays) != _widths(self._turns[0]):
            raise ValueError(
                f"{where}: the sampler recorded rows of {_widths(arrays)}, "
                f"in the first turn of {_widths(self._turns[0])}; they must be equal"
            )
        self._turns.append(arrays)

    def arrays(self) -> dict[str, np.ndarray]:
        """[actions, width] of each field that was recorded."""
        names = self._turns[0] if self._turns else ()
        return {name: np.concatenate([turn[name] for turn in self._turns]) for name in names}


def _widths(arrays: dict[str, np.ndarray]) -> dict[str, int]:
    return {name: array.shape[1] for name, array in arrays.items()}


def _array(rows: list[list[float]], dtype: type, what: str) -> np.ndarray:
    try:
        return np.array(rows, dtype)
    except ValueError as error:  # numpy's message does not say whose rows they are
        raise ValueError(f"{what}: rows of different lengths, or no numbers") from error
