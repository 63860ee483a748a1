"""Rollouts with a real store and book, and a made-up worker."""

import collections

import numpy as np

from jaxrl_single import store as store_lib
from jaxrl_single import types
from jaxrl_single.data import prompts, tickets
from jaxrl_single.stages import rollouts, waiting
from jaxrl_single.weights import filesystem

RUN = "run"
PARAMS = {"w": np.arange(3, dtype=np.float32)}


def task(number, ticks=1):
    return types.Task(id=f"t{number}", question=f"{number}", answer="0", data={"ticks": ticks})


def trajectory(ticket, version, *, actions=2, error=None):
    mask = np.array([False] + [True] * actions)
    length = len(mask)
    return types.Trajectory(
        run_id=ticket.run_id,
        ticket=ticket.number,
        attempt=ticket.attempt,
        task_id=ticket.task.id,
        group_id=ticket.group_id,
        tokens=np.zeros(length, np.int32),
        action_mask=mask,
        rollout_logprobs=np.where(mask, -1, 0).astype(np.float32),
        policy_versions=np.where(mask, version, types.NOT_SAMPLED).astype(np.int32),
        turn_ids=np.zeros(length, np.int32),
        rewards=np.zeros(length, np.float32),
        entropies=np.zeros(length, np.float32),
        segment_ids=np.ones(length, np.int32),
        reward=None if error else 1.0,
        terminated=error is None,
        truncated=False,
        split=ticket.split,
        purpose=ticket.purpose,
        success=None if error else True,
        error=error,
    )


class Worker:
    """Finishes a ticket after as many waits of the trainer as its task says."""

    def __init__(self, store, *, slots=10**6, fails=lambda ticket: None):
        self.store, self.slots, self.fails = store, slots, fails
        self.version, self.stopping = None, False
        self.waiting, self.running = collections.deque(), []
        self.sent = []

    def send(self, batch):
        self.sent += batch
        self.waiting.extend(batch)

    def serve(self, version, params):
        self.version = version

    def check(self):
        if self.stopping:
            raise waiting.Stopped

    def wait(self):
        while self.waiting and len(self.running) < self.slots:
            ticket = self.waiting.popleft()
            self.running.append([ticket, ticket.task.data.get("ticks", 1), self.version])
        for item in list(self.running):
            item[1] -= 1
            if item[1] <= 0:
                self.running.remove(item)
                ticket, version = item[0], item[2]
                actions = 2 * ticket.task.data.get("ticks", 1)
                self.store.write(
                    trajectory(ticket, version, actions=actions, error=self.fails(ticket))
                )


def make(directory, tasks, *, worker=None, **changes):
    fields = dict(
        batch_size=4,
        group_size=1,
        open_batches=4,
        max_staleness=3,
        temperature=1.0,
        max_consecutive_errors=5,
        no_progress_s=60.0,
        keep_versions=2,
        in_ticket_order=False,
    )
    max_attempts = changes.pop("max_attempts", 2)
    store = store_lib.TrajectoryStore(directory / "trajectories", RUN)
    worker = worker(store) if worker else Worker(store)
    iterator = prompts.TaskIterator(tasks, seed=0, shuffle=False)
    made = rollouts.Rollouts(
        book=tickets.TicketBook(RUN, iterator, max_attempts=max_attempts),
        store=store,
        weights=filesystem.FileWeights(directory / "weights", RUN),
        backend=worker,
        eval_tasks=[task(1000 + i) for i in range(8)],
        settings=rollouts.Settings(**{**fields, **changes}),
    )
    return made, worker
