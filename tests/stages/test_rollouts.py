"""Lineage, staleness and failures of rollouts, with real stores and books and a made-up worker."""

import collections
import itertools
import time

import numpy as np
import pytest
import rollouts_lab as lab

from jaxrl_single import store as store_lib
from jaxrl_single import types
from jaxrl_single.stages import waiting
from jaxrl_single.weights import filesystem


class UnevenWorker(lab.Worker):
    """Members of a group take times of their own."""

    def __init__(self, store, rng, **options):
        super().__init__(store, **options)
        self.rng = rng

    def wait(self):
        for item in self.running:
            item[1] += int(self.rng.integers(0, 2))
        super().wait()


def test_age_is_measured_at_consumption(tmp_path):
    """Finished at version 0, consumed at version 5, bound 3: not trained."""
    made, _ = lab.make(tmp_path, [lab.task(i) for i in range(100)])
    made.publish(lab.PARAMS, step=0)
    first = made.take(4, purpose="rl").trajectories
    waiting = {t.key for t in made.book.stored()}
    assert waiting, "some work waits in the store, sampled by version 0"
    for step in range(1, 6):
        made.publish(lab.PARAMS, step=step)
    taken = made.take(4, purpose="rl")
    assert {t.key for t in taken.dropped} == waiting
    assert {int(t.policy_versions.max()) for t in taken.trajectories} == {5}
    counts = made.book.counts()
    assert counts["dropped_stale"] == len(waiting)
    assert counts["trained"] == len(first) + 4


@pytest.mark.parametrize("version", [0, 100])
def test_admission_is_bounded_also_after_a_resume_at_a_high_version(tmp_path, version):
    """At most (max_staleness + 1) batches are open, not (version + ...) batches."""
    made, worker = lab.make(tmp_path, [lab.task(i) for i in range(1000)])
    state = {"book": made.book.state(), "version": version}
    made.restore(state, used=())
    made.publish(lab.PARAMS, step=0)
    assert made.version == version + 1
    made.top_up(purpose="rl")
    made.top_up(purpose="rl")
    assert len(worker.sent) == (3 + 1) * 4


def test_episodes_that_come_all_at_once_after_a_long_wait_are_progress(tmp_path):
    """The mode of one process plays all that is ordered within a single wait."""
    made, worker = lab.make(tmp_path, [lab.task(i) for i in range(100)], no_progress_s=0.05)
    at_once = worker.wait
    worker.wait = lambda: (time.sleep(0.1), at_once())
    made.publish(lab.PARAMS, step=0)
    assert len(made.take(4, purpose="rl").trajectories) == 4


def test_slow_episodes_are_not_starved(tmp_path):
    """Half the tasks take 1 tick, half 10, bound 2; trained is about the same mix."""
    tasks = [lab.task(i, ticks=1 if i % 2 else 10) for i in range(4000)]
    made, _ = lab.make(
        tmp_path,
        tasks,
        worker=lambda store: lab.Worker(store, slots=8),
        open_batches=3,
        max_staleness=2,
    )
    made.publish(lab.PARAMS, step=0)
    trained, dropped = [], []
    for step in range(60):
        made.top_up(purpose="rl")
        taken = made.take(4, purpose="rl")
        trained += taken.trajectories
        dropped += taken.dropped
        made.publish(lab.PARAMS, step=step)
    slow = [t for t in trained if t.num_actions == 20]
    slow_dropped = [t for t in dropped if t.num_actions == 20]
    assert 0.35 <= len(slow) / len(trained) <= 0.65
    # What is missing of the slow ones is visible, by length, in what was dropped.
    assert len(slow) + len(slow_dropped) >= 0.4 * (len(trained) + len(dropped))


def test_a_failed_episode_is_tried_again_and_never_a_reward(tmp_path):
    boom = types.EpisodeError("env", "ZeroDivisionError: boom\nTraceback ...")
    made, worker = lab.make(
        tmp_path,
        [lab.task(i) for i in range(100)],
        worker=lambda store: lab.Worker(
            store, fails=lambda t: boom if t.number == 1 and t.attempt == 0 else None
        ),
    )
    made.publish(lab.PARAMS, step=0)
    trained = [t for _ in range(5) for t in made.take(4, purpose="rl").trajectories]
    assert made.take_errors() == {"env": 1}
    assert [(t.number, t.attempt) for t in worker.sent if t.number == 1] == [(1, 0), (1, 1)]
    assert [t.attempt for t in trained if t.ticket == 1] == [1]
    counts = made.book.counts()
    assert counts["errors"] == 1
    assert counts["written"] == counts["trained"] + counts["errors"] + counts["pending"]


def test_wanted_trajectories_come_although_tickets_fail_for_good(tmp_path):
    """A ticket that failed at every attempt is replaced, else the trainer would wait for ever."""
    boom = types.EpisodeError("env", "ValueError: boom")
    made, _ = lab.make(
        tmp_path,
        [lab.task(i) for i in range(100)],
        worker=lambda store: lab.Worker(store, fails=lambda t: boom if t.number % 3 == 0 else None),
        no_progress_s=5.0,
    )
    made.publish(lab.PARAMS, step=0)
    taken = made.take(6, purpose="value_pretraining", wanted=6)
    assert len(taken.trajectories) == 6
    assert made.queued() == 0
    assert made.book.in_flight() == []


def groups_of(taken):
    counts = collections.Counter(one.group_id for one in taken.trajectories)
    return sorted(counts.values())


def test_a_group_is_trained_whole_however_fast_its_members_are(tmp_path):
    rng = np.random.default_rng(0)
    made, _ = lab.make(
        tmp_path,
        [lab.task(i) for i in range(1000)],
        worker=lambda store: UnevenWorker(store, rng, slots=10),
        batch_size=8,
        group_size=4,
        open_batches=3,
    )
    made.publish(lab.PARAMS, step=0)
    for step in range(20):
        assert groups_of(made.take(8, purpose="rl")) == [4, 4]
        made.publish(lab.PARAMS, step=step)


@pytest.mark.parametrize("open_batches", [1, 2])
def test_a_group_that_lost_a_member_is_trained_without_it_and_starves_nobody(
    tmp_path, open_batches
):
    boom = types.EpisodeError("env", "ValueError: boom")
    made, _ = lab.make(
        tmp_path,
        [lab.task(i) for i in range(100)],
        worker=lambda store: lab.Worker(
            store, fails=lambda t: boom if t.number in (1, 9) else None
        ),
        batch_size=8,
        group_size=4,
        open_batches=open_batches,
        in_ticket_order=True,
        no_progress_s=5.0,
    )
    made.publish(lab.PARAMS, step=0)
    found = [groups_of(made.take(8, purpose="rl")) for _ in range(5)]
    assert {len(groups) for groups in found} == {2}
    assert sorted(itertools.chain(*found)) == [3, 3] + [4] * 8


def test_wanted_trajectories_need_no_whole_groups(tmp_path):
    made, _ = lab.make(
        tmp_path, [lab.task(i) for i in range(100)], group_size=4, batch_size=8, no_progress_s=5.0
    )
    made.publish(lab.PARAMS, step=0)
    taken = made.take(6, purpose="value_pretraining", wanted=6, whole_groups=False)
    assert len(taken.trajectories) == 6


def test_failures_in_a_row_stop_the_run_with_the_first_cause(tmp_path):
    """An exception in an environment neither hangs nor vanishes."""

    def fails(ticket):
        return types.EpisodeError("reward", f"ValueError: cause of {ticket.number}")

    made, _ = lab.make(
        tmp_path, [lab.task(i) for i in range(100)], worker=lambda s: lab.Worker(s, fails=fails)
    )
    made.publish(lab.PARAMS, step=0)
    with pytest.raises(waiting.RolloutFailed, match=r"5 episodes failed in a row[\s\S]*cause of 0"):
        made.take(4, purpose="rl")


def test_nothing_arriving_is_an_error_not_a_hang(tmp_path):
    made, worker = lab.make(tmp_path, [lab.task(i) for i in range(100)], no_progress_s=0.05)
    worker.wait = lambda: None
    made.publish(lab.PARAMS, step=0)
    with pytest.raises(waiting.RolloutFailed, match=r"no trajectory arrived.*16 tickets"):
        made.take(4, purpose="rl")


def test_a_stop_is_heard_although_nothing_is_missing(tmp_path):
    made, worker = lab.make(tmp_path, [lab.task(i) for i in range(100)])
    made.publish(lab.PARAMS, step=0)
    made.take(4, purpose="rl")
    assert made.queued() >= 4, "the next batch needs no waiting"
    worker.stopping = True
    with pytest.raises(waiting.Stopped):
        made.take(4, purpose="rl")
    assert made.queued() >= 4, "and what is ready stays for the checkpoint"


def test_torn_file_is_sampled_again(tmp_path):
    made, worker = lab.make(tmp_path, [lab.task(i) for i in range(100)])
    made.publish(lab.PARAMS, step=0)
    made.top_up(purpose="rl")
    worker.wait()
    victim = store_lib.files(tmp_path / "trajectories", "train")[0]
    victim.write_bytes(victim.read_bytes()[:-7])
    taken = [t for _ in range(4) for t in made.take(4, purpose="rl").trajectories]
    assert 0 not in [t.ticket for t in taken if t.attempt == 0]
    assert [t.attempt for t in taken if t.ticket == 0] in ([], [1])
    assert len(made.store.rejections) == 1
    assert sorted(p.name for p in (tmp_path / "trajectories" / "rejected").iterdir())


def test_evaluation_keeps_its_version_until_it_is_done(tmp_path):
    made, worker = lab.make(tmp_path, [lab.task(i) for i in range(100)])
    version = made.publish(lab.PARAMS, step=0)
    made.request_evaluation("rl@0", num_tasks=8, version=version)
    for step in range(1, 6):
        made.publish(lab.PARAMS, step=step)
    assert version in filesystem.FileWeights(tmp_path / "weights", lab.RUN).versions()
    assert {t.policy_version for t in worker.sent if t.split == "eval"} == {version}
    assert made.take_evaluation("rl@0", wait=False) is None
    # Its episodes may be there before anybody asks for them, and are scored again after that.
    for _ in range(3):
        made.take(4, purpose="rl")
    assert made.book.in_flight("eval") == []
    for step in range(6, 11):
        made.publish(lab.PARAMS, step=step)
    assert version in filesystem.FileWeights(tmp_path / "weights", lab.RUN).versions()
    episodes = made.take_evaluation("rl@0", wait=True)
    assert [e.task_id for e in episodes] == [f"t{1000 + i}" for i in range(8)]
    assert made.open_evaluations() == []
    made.publish(lab.PARAMS, step=11)
    assert version not in filesystem.FileWeights(tmp_path / "weights", lab.RUN).versions()
