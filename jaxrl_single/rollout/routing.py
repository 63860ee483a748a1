"""Which experts read the tokens of an episode, gathered from a sampler's answers turn by turn."""

from __future__ import annotations

import numpy as np

from jaxrl_single import types, wire


class Routing:
    """Grows turn by turn; `array` lays the turns side by side.

    A token counts with its first reading: that is the one after which the next token was drawn.
    Later ones, of a cache that was dropped and filled again, fill the gaps only.
    """

    def __init__(self):
        self._pieces: list[tuple[int, np.ndarray]] = []  # first token, [tokens, L, k]

    def append(
        self, completion: wire.Completion, *, num_tokens: int, where: str, offset: int = 0
    ) -> None:
        """Takes over what an answer says; one that says nothing leaves its tokens unknown.

        Args:
          num_tokens: of the request and of its answer.
          offset: tokens of the episode before those of the request, in earlier segments.
          where: begins the messages of errors.

        Raises:
          ValueError: the entries are no choice of experts, lie outside the request, or are shaped
            otherwise than those of earlier turns; nothing was taken over.
        """
        if not completion.expert_ids:
            return
        start = completion.expert_start
        entries = _array(completion.expert_ids, where)
        types.validate_routing(entries, len(entries), where)
        if not 0 <= start <= num_tokens - len(entries):
            raise ValueError(
                f"{where}: expert_ids are of the tokens {start} to {start + len(entries) - 1}, "
                f"there are {num_tokens} tokens"
            )
        if self._pieces and entries.shape[1:] != self._pieces[0][1].shape[1:]:
            raise ValueError(
                f"{where}: expert_ids has {list(entries.shape[1:])} (layers, experts per token), "
                f"in an earlier turn {list(self._pieces[0][1].shape[1:])}; they must be equal"
            )
        self._pieces.append((offset + start, entries))

    def array(self, num_tokens: int) -> np.ndarray | None:
        """[num_tokens, L, k] as in `types.Trajectory`; None when no turn said anything."""
        if not self._pieces:
            return None
        shape = (num_tokens, *self._pieces[0][1].shape[1:])
        found = np.full(shape, types.UNKNOWN_EXPERT, types.ROUTING_FIELDS["expert_ids"])
        for start, entries in self._pieces:
            there = found[start : start + len(entries)]
            there[:] = np.where(there == types.UNKNOWN_EXPERT, entries, there)
        return found


def _array(entries: list[list[list[int]]], where: str) -> np.ndarray:
    try:
        return np.array(entries, types.ROUTING_FIELDS["expert_ids"])
    except (ValueError, OverflowError) as error:  # numpy's message does not say whose they are
        raise ValueError(
            f"{where}: expert_ids: entries of different shapes, or no expert's number"
        ) from error
