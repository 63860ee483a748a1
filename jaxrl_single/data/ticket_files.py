"""Tickets from the trainer to rollout through a directory, one JSON file each. No jax.

    tickets/KEY.json          to be done; the trainer writes it, whole or not at all
    tickets/rejected/...      foreign or broken files; never used

A ticket's file stays until its trajectory is in the store, so a worker that dies loses nothing:
the next one finds it again.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
from collections.abc import Iterable

from jaxrl_single import types, workdir
from jaxrl_single.data import tickets

_SUFFIX = ".json"
_log = logging.getLogger(__name__)


def write(directory: os.PathLike[str] | str, batch: Iterable[types.Ticket]) -> None:
    """Writes one file per ticket; an older file of the same ticket is replaced.

    Raises:
      workdir.CannotWrite: the disk is full or the directory not writable.
    """
    for ticket in batch:
        path = pathlib.Path(directory) / f"{ticket.key}{_SUFFIX}"
        workdir.write_json(path, tickets.to_json(ticket))


def clear(directory: os.PathLike[str] | str) -> list[int]:
    """Withdraws all tickets; a trainer does so when it starts, and then issues what is open.

    Returns:
      Their numbers, which a worker may hold still.
    """
    paths = _files(pathlib.Path(directory))
    for path in paths:
        path.unlink(missing_ok=True)
    numbers = [path.stem.partition("-")[0] for path in paths]
    return [int(number) for number in numbers if number.isdecimal()]


class FileTickets:
    """The worker's end of the directory: a `TicketSource` of rollout/scheduler.py.

    Attributes:
      rejections: one line for each file that was not used.
    """

    def __init__(self, directory: os.PathLike[str] | str, run_id: str):
        """Reads tickets of this run from `directory`, which need not exist yet."""
        self._directory = pathlib.Path(directory)
        self._run_id = run_id
        self._seen: set[str] = set()
        self.rejections: list[str] = []

    def poll(self) -> list[types.Ticket]:
        """Tickets that were not returned before, in the order of issue."""
        paths = _files(self._directory)
        # A withdrawn name is forgotten, so that the ticket counts as new when it is issued again.
        self._seen &= {path.name for path in paths}
        batch = []
        for path in paths:
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            try:
                batch.append(self._read(path))
            except FileNotFoundError:
                self._seen.discard(path.name)  # withdrawn between listing and reading
            except (tickets.InvalidTicket, ValueError, OSError) as error:
                self._reject(path, error)
        return batch

    def done(self, ticket: types.Ticket) -> None:
        """Removes the ticket; call it when its trajectory is in the store."""
        name = f"{ticket.key}{_SUFFIX}"
        (self._directory / name).unlink(missing_ok=True)
        self._seen.discard(name)

    def _read(self, path: pathlib.Path) -> types.Ticket:
        ticket = tickets.from_json(json.loads(path.read_bytes()))
        if ticket.run_id != self._run_id:
            raise tickets.InvalidTicket(
                f"it is of run {ticket.run_id!r}, this run is {self._run_id!r}"
            )
        if ticket.key != path.stem:
            raise tickets.InvalidTicket(f"it holds ticket {ticket.key}")
        return ticket

    def _reject(self, path: pathlib.Path, error: Exception) -> None:
        target = path.parent / "rejected" / path.name
        try:
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
            self._seen.discard(path.name)
        except OSError:
            target = path  # it stays in `_seen`, so it is reported once and not used
        line = f"ticket file {target} is not used: {error}"
        self.rejections.append(line)
        _log.warning(line)


def _files(directory: pathlib.Path) -> list[pathlib.Path]:
    try:
        names = [entry.name for entry in os.scandir(directory)]
    except FileNotFoundError:
        return []
    tickets_only = [n for n in names if n.endswith(_SUFFIX) and not n.startswith(".")]
    return [directory / name for name in sorted(tickets_only)]
