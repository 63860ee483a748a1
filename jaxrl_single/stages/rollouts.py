"""The trainer's end of rollout: orders episodes, collects them, and keeps their lineage.

    top_up -> tickets -> (sampler process, or inline) -> store -> collect -> take / evaluation

Nothing is trained twice and nothing is lost silently: a ticket is open until its trajectory was
trained, dropped, evaluated or failed for the last time, and the book of tickets is part of every
checkpoint.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

from jaxrl_single import store as store_lib
from jaxrl_single import types
from jaxrl_single.data import batching, tickets
from jaxrl_single.stages import backends, keeping, waiting
from jaxrl_single.weights import base as weights_base


@dataclasses.dataclass(frozen=True)
class Settings:
    """Plain values of the config; see configs/common.py."""

    batch_size: int
    group_size: int
    open_batches: int  # at most so many at once: admission control
    max_staleness: int
    temperature: float
    max_consecutive_errors: int
    no_progress_s: float
    keep_versions: int
    in_ticket_order: bool  # consume by ticket instead of by completion: deterministic
    keep: keeping.Rule = keeping.NOTHING  # which consumed trajectories stay


@dataclasses.dataclass(frozen=True)
class Taken:
    """Trajectories for one update, and how they came.

    Attributes:
      trajectories: the batch, in the order of completion (of tickets in sync mode).
      dropped: older than the bound when they would have been consumed.
      waited_s: seconds until the batch was complete.
    """

    trajectories: list[types.Trajectory]
    dropped: list[types.Trajectory]
    waited_s: float


class Rollouts:
    """Used by the trainer's thread only.

    Attributes:
      version: of the newest published weights, -1 before the first.
      params_sha256: of those weights.
      errors: failed episodes by kind since `take_errors`.
    """

    def __init__(
        self,
        *,
        book: tickets.TicketBook,
        store: store_lib.TrajectoryStore,
        weights: weights_base.WeightStore,
        backend: backends.Backend,
        eval_tasks: Sequence[types.Task],
        settings: Settings,
    ):
        self.book = book
        self.store = store
        self.backend = backend
        self.settings = settings
        self.version = -1
        self.params_sha256: str | None = None
        self._weights = weights
        self._eval_tasks = eval_tasks
        self._ready: list[types.Trajectory] = []
        self._evaluated: dict[str, list[types.Trajectory]] = collections.defaultdict(list)
        self._strangers: set[str] = set()  # in the store, but no ticket of the book is open
        self._finished = keeping.Finished(settings.keep)
        self._errors: collections.Counter[str] = collections.Counter()
        self._first_error: types.EpisodeError | None = None
        self._newest_seen = -1  # version that sampled a token of a trajectory
        self._last_arrival = time.monotonic()

    def publish(self, params: weights_base.Params, *, step: int) -> int:
        """Makes the parameters the next version; returns its number."""
        # What was sampled tells of versions that are gone: weights may lie where a reboot clears.
        version = max(self.version, self._newest_published(), self._newest_seen) + 1
        self.params_sha256 = self._weights.publish(version, params, metadata={"step": step})
        self.version = version
        # Those of finished evaluations too, which are still to be scored again.
        evaluating = (*self.book.in_flight("eval"), *self.book.stored("eval"))
        pinned = {ticket.policy_version for ticket in evaluating} - {None}
        self._weights.prune(self.settings.keep_versions, pinned)
        self.backend.serve(version, params)
        return version

    def serve_again(self, params: weights_base.Params) -> None:
        """Serves the restored version under its old number: nobody else has seen a later one."""
        if self._newest_published() < self.version:
            self._weights.publish(self.version, params, metadata={"restored": True})
        self.params_sha256 = weights_base.params_sha256(params)
        self.backend.serve(self.version, params)

    def forget_strangers(self, held: Iterable[str] = ()) -> int:
        """Deletes trajectories that no open ticket of the book asked for; returns how many.

        Those of the keys `held` stay.

        They come from steps that were lost with a killed process; their tasks are drawn again.
        Attempts that failed are made again, for the cause may have been mended meanwhile.
        """
        self.collect(forgive=True)
        stay = {*self._finished.state(), *held}
        strangers, self._strangers = self._strangers - stay, set()
        self.store.forget(strangers)
        return len(strangers)

    def top_up(self, *, purpose: str, wanted: int | None = None) -> None:
        """Issues training tickets up to the admission bound, and retries of failed episodes.

        With `wanted`, no more than that many trajectories are in flight or ready together.
        """
        in_flight, group_size = len(self.book.in_flight()), self.settings.group_size
        room = self.book.room(self.settings.open_batches * self.settings.batch_size)
        if wanted is not None:
            room = min(room, wanted - in_flight - len(self._ready))
        if room > 0 and not in_flight:
            # A group that lost a member for good leaves room for less than a group.
            room = max(room, group_size)
        self._send(
            self.book.issue(
                room,
                purpose=purpose,
                temperature=self.settings.temperature,
                group_size=group_size,
            )
        )

    def take(
        self,
        count: int,
        *,
        purpose: str,
        step: int = 0,
        wanted: int | None = None,
        whole_groups: bool = True,
    ) -> Taken:
        """Waits for `count` trajectories that are fresh enough at this moment.

        While it waits, it tops up; `wanted` as there.

        Args:
          step: that they are for; 0 before RL.
          whole_groups: a group comes when its last member has ended, and in one batch. One that
            lost members for good is smaller, and then there may be less than `count`.

        Raises:
          waiting.RolloutFailed: too many failures in a row, or nothing arrived for too long.
          waiting.Stopped: the run was asked to stop.
        """
        began = time.monotonic()
        self._last_arrival = began
        dropped: list[types.Trajectory] = []
        while True:
            # Also when nothing is missing: a fast sampler must not make the trainer deaf.
            self.backend.check()
            self.collect()
            dropped += self._drop_stale(step)
            if batch := self._choose(count, whole_groups=whole_groups):
                break
            self.top_up(purpose=purpose, wanted=wanted)
            self._wait()
        keys = [trajectory.key for trajectory in batch]
        taken = set(keys)
        self._ready = [one for one in self._ready if one.key not in taken]
        self.book.mark_trained(keys)
        self._finished.trained(keys, step=step, purpose=purpose)
        return Taken(batch, dropped, time.monotonic() - began)

    def request_evaluation(
        self, purpose: str, *, num_tasks: int, version: int, series: str = "eval"
    ) -> None:
        """Orders one episode on each of the first `num_tasks` held-out tasks, at this version.

        `series` is that of the tickets' numbers, see `TicketBook.issue_eval`.
        """
        tasks = [self._eval_tasks[i] for i in range(min(num_tasks, len(self._eval_tasks)))]
        self._send(
            self.book.issue_eval(
                tasks,
                policy_version=version,
                purpose=purpose,
                temperature=self.settings.temperature,
                series=series,
            )
        )

    def open_evaluations(self) -> list[str]:
        """Purposes ("STAGE@STEP") that were requested and not yet taken, by step."""
        asked = {ticket.purpose for ticket in self.book.in_flight("eval")}
        return sorted({*self._evaluated, *asked}, key=lambda purpose: int(purpose.split("@")[1]))

    def take_evaluation(self, purpose: str, *, wait: bool) -> list[types.Trajectory] | None:
        """The episodes of an evaluation, errors included; None while some are missing."""
        self._last_arrival = time.monotonic()
        while True:
            self.collect()
            if not any(ticket.purpose == purpose for ticket in self.book.in_flight("eval")):
                break
            if not wait:
                return None
            self.backend.check()
            self._send(self.book.issue(0))  # retries of failed episodes
            self._wait()
        episodes = self._evaluated.pop(purpose, [])
        keys = [trajectory.key for trajectory in episodes if trajectory.error is None]
        self.book.mark_evaluated(keys)
        self._finished.evaluated(keys, purpose)
        return sorted(episodes, key=lambda trajectory: trajectory.ticket)

    def forget_evaluations(self, purposes: Iterable[str]) -> None:
        """Closes the tickets of evaluations whose result is known already."""
        for purpose in set(purposes):
            self._finished.evaluated(self._withdraw(purpose), purpose)

    def renew_evaluations(self, same_as_newest: int) -> list[str]:
        """Gives up evaluations whose weights are gone and returns their purposes.

        Those of `same_as_newest`, whose parameters are the newest version too, are ordered anew.
        """
        there = {*self._weights.versions(), None}
        asked = [*self.book.in_flight("eval"), *self.book.stored("eval")]
        lost = {one.purpose: one.policy_version for one in asked if one.policy_version not in there}
        for purpose, version in lost.items():
            self._finished.useless(self._withdraw(purpose))
            if version == same_as_newest:
                num_tasks = sum(ticket.purpose == purpose for ticket in asked)
                self.request_evaluation(purpose, num_tasks=num_tasks, version=self.version)
        return [purpose for purpose, version in lost.items() if version != same_as_newest]

    def collect(self, *, forgive: bool = False) -> None:
        """Reads what has arrived since the last call; `forgive` forgets attempts that failed."""
        for split in types.SPLITS:
            for key in self.store.scan(split):
                self._arrive(key, forgive=forgive)

    def queued(self) -> int:
        """Finished trajectories that wait to be trained."""
        return len(self._ready)

    def take_errors(self) -> dict[str, int]:
        """Failed episodes by kind since the last call."""
        errors, self._errors = dict(self._errors), collections.Counter()
        return errors

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, in JSON types."""
        staying = self._finished.state()
        return {"book": self.book.state(), "version": self.version, "staying": staying}

    def restore(
        self, state: dict[str, Any], *, used: Iterable[int], held: Sequence[str] = ()
    ) -> int:
        """Continues from a checkpoint: open tickets come first, finished ones are found again.

        Args:
          state: of `state()`.
          used: see `TicketBook.restore`.
          held: keys of trajectories that were taken and are still needed, until `delete_covered`.

        Returns what `forget_strangers` returns.
        """
        self.book.restore(state["book"], used=used)
        self.version = state["version"]
        self._finished.restore(state.get("staying", {}))
        lost = self.forget_strangers(held)
        self.delete_covered()
        self._finished.useless(held)
        return lost

    def resend(self) -> None:
        """Issues again whatever was open at the checkpoint and is not in the store."""
        self._send(self.book.issue(0))

    def delete_covered(self) -> None:
        """Deletes the files of consumed trajectories, or puts them where they stay.

        Call it after a checkpoint.
        """
        self._finished.settle(self.store)

    def _withdraw(self, purpose: str) -> list[str]:
        """Closes the tickets of an evaluation; returns their keys."""
        tickets_open = [*self.book.in_flight("eval"), *self.book.stored("eval")]
        keys = [ticket.key for ticket in tickets_open if ticket.purpose == purpose]
        self.book.withdraw(keys)
        self._evaluated.pop(purpose, None)
        return keys

    def _newest_published(self) -> int:
        newest = self._weights.latest()
        return -1 if newest is None else newest

    def _send(self, batch: Sequence[types.Ticket]) -> None:
        if batch:
            self.backend.send(batch)

    def _choose(self, count: int, *, whole_groups: bool) -> list[types.Trajectory]:
        """The next batch, [] while it is not complete."""
        if self.settings.in_ticket_order:
            self._ready.sort(key=lambda trajectory: trajectory.ticket)
        if not whole_groups:
            return self._ready[:count] if len(self._ready) >= count else []
        running = {ticket.group_id for ticket in self.book.in_flight()}
        groups: dict[int, list[types.Trajectory]] = collections.defaultdict(list)
        for trajectory in self._ready:
            if trajectory.group_id not in running:
                groups[trajectory.group_id].append(trajectory)
        batch: list[types.Trajectory] = []
        for members in groups.values():
            if len(batch) + len(members) > count:
                return batch
            batch += members
        return batch if len(batch) == count else []

    def _arrive(self, key: str, *, forgive: bool) -> None:
        self._last_arrival = time.monotonic()
        if not self.book.is_open(key):
            self._strangers.add(key)
            return
        trajectory: types.Trajectory | None = None
        try:
            trajectory = self.store.read(key)
            error = trajectory.error
        except store_lib.Rejected as rejected:
            error = types.EpisodeError("sampler", str(rejected))
        if error is not None and forgive:
            self.store.forget([key])
        elif error is not None:
            retry = self._fail(key, error)
            if trajectory is not None:
                self._finished.useless([key])
                if retry is None and trajectory.split == "eval":
                    self._evaluated[trajectory.purpose].append(trajectory)
        elif self.book.mark_stored(key):
            self._newest_seen = max(self._newest_seen, int(trajectory.policy_versions.max()))
            if trajectory.split == "eval":
                self._evaluated[trajectory.purpose].append(trajectory)
            else:
                self._ready.append(trajectory)

    def _fail(self, key: str, error: types.EpisodeError) -> types.Ticket | None:
        """Counts a failed episode; returns its retry, None after the last attempt."""
        self._errors[error.kind] += 1
        if self.book.consecutive_errors == 0:
            self._first_error = error
        retry = self.book.mark_error(key)
        if self.book.consecutive_errors >= self.settings.max_consecutive_errors:
            first = self._first_error or error
            raise waiting.RolloutFailed(
                f"{self.book.consecutive_errors} episodes failed in a row "
                f"(rollout.max_consecutive_errors); the first, of kind {first.kind!r}:\n"
                f"{first.message}"
            )
        return retry

    def _drop_stale(self, step: int) -> list[types.Trajectory]:
        selection = batching.select(
            self._ready,
            trainer_version=self.version,
            max_staleness=self.settings.max_staleness,
        )
        if selection.stale:
            keys = [trajectory.key for trajectory in selection.stale]
            self.book.mark_dropped(keys)
            self._finished.dropped(keys, step=step)
        self._ready = selection.fresh
        return selection.stale

    def _wait(self) -> None:
        """Call it after `collect`: what came during the last wait is progress."""
        silent = time.monotonic() - self._last_arrival
        if silent > self.settings.no_progress_s:
            in_flight = len(self.book.in_flight("train")) + len(self.book.in_flight("eval"))
            raise waiting.no_progress(silent, in_flight)
        self.backend.wait()
