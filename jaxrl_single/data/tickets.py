"""Who was asked for what, and what became of it: numbering and lineage of tickets. No jax.

A ticket is open from its issue until its trajectory is trained, dropped or evaluated, or until its
last attempt failed. The state is part of the trainer's checkpoint, so "trained once" holds in the
lineage of the restored checkpoint: what was open then is open again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from jaxrl_single import types

# First numbers: what is evaluated, and how often, must not move the randomness of training.
SERIES = {"train": 0, "eval": 500_000_000, "gate": 900_000_000}

_FIELD_TYPES = {
    "run_id": str,
    "number": int,
    "attempt": int,
    "task": dict,
    "split": str,
    "temperature": (int, float),
    "policy_version": (int, type(None)),
    "group_id": int,
    "purpose": str,
}


class InvalidTicket(ValueError):
    """A ticket cannot be used; the message names the field."""


class UnknownTicket(KeyError):
    """A ticket was marked that is not open in this state: a fault of the caller."""

    def __str__(self) -> str:
        return str(self.args[0])


class TaskSource(Protocol):
    """Where the tasks of training tickets come from; see data/prompts.py."""

    def next(self) -> types.Task: ...

    def prefer(self, weight: Callable[[types.Task], float]) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


def to_json(ticket: types.Ticket) -> dict[str, Any]:
    """The ticket as JSON types."""
    return dataclasses.asdict(ticket)


def from_json(fields: Any) -> types.Ticket:
    """Reads what `to_json` wrote.

    Raises:
      InvalidTicket: a field is missing, unknown, of another type or out of range.
    """
    if not isinstance(fields, dict) or set(fields) != set(_FIELD_TYPES):
        found = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
        raise InvalidTicket(f"a ticket has the fields {sorted(_FIELD_TYPES)}, found {found}")
    for name, kind in _FIELD_TYPES.items():
        if not isinstance(fields[name], kind) or isinstance(fields[name], bool):
            raise InvalidTicket(f"{name} is {fields[name]!r:.80}, which is of a wrong type")
    if fields["split"] not in types.SPLITS:
        raise InvalidTicket(f"split is {fields['split']!r}, allowed are {types.SPLITS}")
    if not fields["temperature"] > 0 or fields["number"] < 0 or fields["attempt"] < 0:
        raise InvalidTicket(
            f"temperature {fields['temperature']}, number {fields['number']}, attempt "
            f"{fields['attempt']}; allowed are > 0, >= 0, >= 0"
        )
    return types.Ticket(**{**fields, "task": _task_from_json(fields["task"])})


def _task_from_json(fields: dict[str, Any]) -> types.Task:
    try:
        task = types.Task(**fields)
    except TypeError as error:
        raise InvalidTicket(f"task has wrong fields: {error}") from error
    if not all(isinstance(text, str) for text in (task.id, task.question, task.answer)):
        raise InvalidTicket("task: id, question and answer must be strings")
    return task


class TicketBook:
    """Issues tickets and keeps their fate. Used by the trainer only; not thread-safe."""

    def __init__(self, run_id: str, tasks: TaskSource, *, max_attempts: int):
        """Opens an empty book.

        Args:
          run_id: written on every ticket.
          tasks: of training tickets; its position is saved with the book.
          max_attempts: tries of a ticket whose episode fails, >= 1.
        """
        if max_attempts < 1:
            raise ValueError(f"max_attempts is {max_attempts}, must be >= 1")
        self._run_id = run_id
        self._tasks = tasks
        self._max_attempts = max_attempts
        self._next = dict(SERIES)
        self._open: dict[str, types.Ticket] = {}  # by key, in the order of issue
        self._stored: set[str] = set()  # open, and their trajectory has arrived
        self._unsent: list[str] = []  # open, and to be handed out by the next `issue`
        self._counts = {"trained": 0, "dropped_stale": 0, "errors": 0}
        self.consecutive_errors = 0  # failed episodes since the last one that did not fail

    def prefer(self, weight: Callable[[types.Task], float]) -> None:
        """How often each task is to be drawn from now on; see `prompts.TaskIterator.prefer`."""
        self._tasks.prefer(weight)

    def issue(
        self, n: int, *, purpose: str = "rl", temperature: float = 1.0, group_size: int = 1
    ) -> list[types.Ticket]:
        """Tickets to send now: first those that must be sent again, then n new ones.

        Sent again are retries of failed episodes and, after a restore, whatever was open and has
        no trajectory in the store; they are not counted in n.

        Args:
          n: new training tickets, rounded down to whole groups; <= 0 gives none.
          purpose: which stage asks.
          temperature: of sampling.
          group_size: consecutive tickets with the same task and `group_id`.
        """
        tickets = self._resend()
        for _ in range(max(n, 0) // group_size):
            task, group_id = self._tasks.next(), self._next["train"]
            for _ in range(group_size):
                ticket = types.Ticket(
                    self._run_id,
                    self._number("train"),
                    attempt=0,
                    task=task,
                    temperature=temperature,
                    group_id=group_id,
                    purpose=purpose,
                )
                tickets.append(self._add(ticket))
        return tickets

    def issue_eval(
        self,
        tasks: Sequence[types.Task],
        *,
        policy_version: int | None,
        purpose: str,
        temperature: float = 1.0,
        series: str = "eval",
    ) -> list[types.Ticket]:
        """One evaluation ticket per task; all sampled from `policy_version`.

        Args:
          series: of their numbers, "eval" or "gate"; a gate comes at a resume too, so with
            numbers of its own it leaves those of the evaluations as they are.
        """
        tickets = []
        for task in tasks:
            number = self._number(series)
            ticket = types.Ticket(
                self._run_id,
                number,
                attempt=0,
                task=task,
                split="eval",
                temperature=temperature,
                policy_version=policy_version,
                group_id=number,
                purpose=purpose,
            )
            tickets.append(self._add(ticket))
        return tickets

    def room(self, most_open: int) -> int:
        """How many training tickets may be issued so that at most `most_open` are open.

        Admission control: with no more open than max_staleness + 1 batches, what is admitted now
        can be consumed within the bound; dropping stale work is the second line only.
        """
        open_train = sum(ticket.split == "train" for ticket in self._open.values())
        return max(0, most_open - open_train)

    def is_open(self, key: str) -> bool:
        """True when a trajectory with this key can be used, or already lies in the store."""
        return key in self._open

    def mark_stored(self, key: str) -> bool:
        """Notes that a trajectory without error has arrived.

        Returns:
          False when it must not be used: it is no open ticket of this lineage, or a second copy.
        """
        if key not in self._open or key in self._stored:
            return False
        self._stored.add(key)
        self._unsent = [other for other in self._unsent if other != key]
        self.consecutive_errors = 0
        return True

    def mark_error(self, key: str) -> types.Ticket | None:
        """Notes that the episode failed, or that its file was torn.

        Returns:
          The retry, which the next `issue` hands out; None when it was the last attempt, and then
          the ticket is closed without a trajectory.

        Raises:
          UnknownTicket: the key is not open.
        """
        ticket = self._close(key)
        if ticket.split == "train":
            self._counts["errors"] += 1
        self.consecutive_errors += 1
        if ticket.attempt + 1 >= self._max_attempts:
            return None
        retry = dataclasses.replace(ticket, attempt=ticket.attempt + 1)
        self._open[retry.key] = retry
        self._unsent.append(retry.key)
        return retry

    def mark_trained(self, keys: Iterable[str]) -> None:
        """Closes tickets whose trajectories were trained; UnknownTicket if not stored."""
        self._consume(keys, "trained")

    def mark_dropped(self, keys: Iterable[str]) -> None:
        """Closes tickets whose trajectories were too old; UnknownTicket if not stored."""
        self._consume(keys, "dropped_stale")

    def mark_evaluated(self, keys: Iterable[str]) -> None:
        """Closes evaluation tickets; UnknownTicket if not stored."""
        self._consume(keys, None)

    def withdraw(self, keys: Iterable[str]) -> None:
        """Closes open tickets that nobody needs any longer; UnknownTicket if not open."""
        for key in keys:
            self._close(key)

    def in_flight(self, split: str = "train") -> list[types.Ticket]:
        """Open tickets without a trajectory, in the order of issue."""
        return [
            ticket
            for key, ticket in self._open.items()
            if ticket.split == split and key not in self._stored
        ]

    def stored(self, split: str = "train") -> list[types.Ticket]:
        """Open tickets whose trajectory waits to be consumed, in the order of issue."""
        return [
            ticket
            for key, ticket in self._open.items()
            if ticket.split == split and key in self._stored
        ]

    def counts(self) -> dict[str, int]:
        """Fate of all finished training episodes: `workdir.NOBODY` filled in.

        written = trained + dropped_stale + errors + pending, where pending ones wait in the store
        and each failed attempt is an error.
        """
        counts = {**self._counts, "pending": len(self.stored())}
        return {"written": sum(counts.values()), **counts}

    def state(self) -> dict[str, Any]:
        """What `restore` needs, in JSON types; the position of the tasks included."""
        return {
            "run_id": self._run_id,
            "next": dict(self._next),
            "open": [to_json(ticket) for ticket in self._open.values()],
            "counts": dict(self._counts),
            "tasks": self._tasks.state(),
        }

    def restore(self, state: dict[str, Any], *, used: Iterable[int] = ()) -> None:
        """Goes back to `state`; then call `mark_stored` for what lies in the store, then `issue`.

        Args:
          state: of `state()`.
          used: numbers that new tickets must not get. Give those that were issued after `state`
            was taken, if workers may still hold such a ticket or the store its trajectory;
            with none the numbers repeat, and so does all randomness named by them.

        Raises:
          ValueError: the state is of another run or of other tasks.
          InvalidTicket: the state is broken.
        """
        if state["run_id"] != self._run_id:
            raise ValueError(
                f"these tickets are of run {state['run_id']!r}, this run is {self._run_id!r}"
            )
        tickets = [from_json(fields) for fields in state["open"]]
        self._tasks.restore(state["tasks"])
        self._next = dict(state["next"])
        for number in used:
            series = max((name for name in SERIES if SERIES[name] <= number), key=SERIES.get)
            self._next[series] = max(self._next[series], number + 1)
        self._open = {ticket.key: ticket for ticket in tickets}
        self._stored = set()
        self._unsent = list(self._open)
        self._counts = dict(state["counts"])
        self.consecutive_errors = 0

    def _number(self, series: str) -> int:
        self._next[series] += 1
        return self._next[series] - 1

    def _add(self, ticket: types.Ticket) -> types.Ticket:
        self._open[ticket.key] = ticket
        return ticket

    def _resend(self) -> list[types.Ticket]:
        tickets = [self._open[key] for key in self._unsent]
        self._unsent = []
        return tickets

    def _consume(self, keys: Iterable[str], count: str | None) -> None:
        for key in keys:
            if key not in self._stored:
                raise UnknownTicket(f"ticket {key} has no trajectory in the store")
            self._close(key)
            if count:
                self._counts[count] += 1

    def _close(self, key: str) -> types.Ticket:
        if key not in self._open:
            raise UnknownTicket(f"ticket {key} is not open; open are {list(self._open)[:5]} ...")
        self._stored.discard(key)
        self._unsent = [other for other in self._unsent if other != key]
        return self._open.pop(key)
