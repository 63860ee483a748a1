"""What a trainer that starts again makes of the files that it finds."""

import shutil
import types as namespace

import pytest
import rollouts_lab as lab

from jaxrl_single import checkpoint, types
from jaxrl_single.stages import rl, unfinished, waiting
from jaxrl_single.weights import filesystem


def test_kill_between_checkpoints_trains_each_task_once_in_the_lineage(tmp_path):
    """2N steps == N steps, a kill, N steps: the same tasks, none twice, none skipped."""
    tasks = [lab.task(i) for i in range(1000)]
    made, _ = lab.make(tmp_path, tasks)
    made.publish(lab.PARAMS, step=0)
    covered = [t for _ in range(3) for t in made.take(4, purpose="rl").trajectories]
    state = made.state()
    made.delete_covered()
    lost = [t for _ in range(2) for t in made.take(4, purpose="rl").trajectories]  # then: kill

    again, _ = lab.make(tmp_path, tasks)
    keys = again.store.keys()
    used = [int(key.partition("-")[0]) for key in keys]
    again.restore(state, used=used)
    again.publish(lab.PARAMS, step=3)
    assert again.version > made.version, "versions are never reused"
    again.resend()
    trained = covered + [t for _ in range(6) for t in again.take(4, purpose="rl").trajectories]
    ids = [t.task_id for t in trained]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {f"t{i}" for i in range(len(trained) + 16)}
    assert {t.task_id for t in lost} <= set(ids), "what the kill took away is trained again"


BOOM = types.EpisodeError("env", "ValueError: boom")


def test_what_failed_before_a_restart_is_tried_again(tmp_path):
    """An environment that is mended after max_consecutive_errors: the run goes on."""
    tasks = [lab.task(i) for i in range(100)]
    made, _ = lab.make(tmp_path, tasks, worker=lambda s: lab.Worker(s, fails=lambda t: BOOM))
    made.publish(lab.PARAMS, step=0)
    made.top_up(purpose="rl")
    keys, state = [ticket.key for ticket in made.book.in_flight()], made.state()
    with pytest.raises(waiting.RolloutFailed):
        made.take(4, purpose="rl")
    for _ in range(2):  # the second time with nothing left to forgive
        again, worker = lab.make(tmp_path, tasks)
        again.restore(state, used=())
        again.publish(lab.PARAMS, step=0)
        again.resend()
        assert [t.key for t in worker.sent] == keys
        state = again.state()
    assert len(again.take(4, purpose="rl").trajectories) == 4
    assert again.take_errors() == {}


def test_versions_are_not_used_again_although_the_weights_are_gone(tmp_path):
    """Weights in shared memory, and a reboot; what waits in the store is of later versions."""
    tasks = [lab.task(i, ticks=1 + 3 * (i % 3)) for i in range(1000)]
    made, _ = lab.make(tmp_path, tasks, worker=lambda s: lab.Worker(s, slots=4))
    made.publish(lab.PARAMS, step=0)
    made.top_up(purpose="rl")
    state = made.state()
    for step in range(1, 8):
        made.take(4, purpose="rl")
        made.publish(lab.PARAMS, step=step)
    shutil.rmtree(tmp_path / "weights")
    again, _ = lab.make(tmp_path, tasks)
    again.restore(state, used=())
    newest = max(int(t.policy_versions.max()) for t in again._ready)
    assert newest > state["version"] + 1
    assert again.publish(lab.PARAMS, step=0) == newest + 1
    again.resend()
    for _ in range(3):
        again.take(4, purpose="rl")


@pytest.mark.parametrize("restored", [True, False])
def test_an_evaluation_whose_weights_are_gone_does_not_wait_for_them(tmp_path, restored):
    """Ordered anew if the checkpoint has these weights; else given up by name."""
    made, worker = lab.make(tmp_path, [lab.task(i) for i in range(100)])
    version = made.publish(lab.PARAMS, step=0)
    made.request_evaluation("rl@25", num_tasks=8, version=version)
    worker.slots = 3
    worker.wait()
    if not restored:
        made.publish(lab.PARAMS, step=1)
    state = made.state()
    shutil.rmtree(tmp_path / "weights")
    again, worker = lab.make(tmp_path, [lab.task(i) for i in range(100)])
    again.restore(state, used=())
    newest = again.publish(lab.PARAMS, step=25)
    given_up = again.renew_evaluations(state["version"])
    again.resend()
    if restored:
        episodes = again.take_evaluation("rl@25", wait=True)
        assert [e.task_id for e in episodes] == [f"t{1000 + i}" for i in range(8)]
        assert {int(e.policy_versions.max()) for e in episodes} == {newest}
    else:
        assert given_up == ["rl@25"]
        assert [t for t in worker.sent if t.split == "eval"] == []
    assert again.open_evaluations() == []


def test_an_evaluation_is_recorded_although_its_weights_are_gone(tmp_path):
    weights = filesystem.FileWeights(tmp_path, lab.RUN)
    loop = namespace.SimpleNamespace(fetch=lambda version: weights.fetch(version)[0])
    assert rl._mismatch(loop, 3, []) == {}


def test_rollouts_that_a_stopped_stage_has_taken_are_read_again(tmp_path):
    """Each task once, whether it was taken before the stop or after it."""
    tasks = [lab.task(i) for i in range(100)]
    made, _ = lab.make(tmp_path, tasks)
    made.publish(lab.PARAMS, step=0)
    taken = made.take(4, purpose="value_pretraining").trajectories
    noted = checkpoint.Checkpoints(tmp_path / "unfinished", keep=1)
    unfinished.save(noted, taken, {"rollouts": made.state()})

    again, _ = lab.make(tmp_path, tasks)
    metadata = unfinished.metadata(noted)
    again.restore(metadata["rollouts"], used=(), held=metadata["taken"])
    found = unfinished.read(again.store, metadata["taken"])
    assert [one.key for one in found] == [one.key for one in taken]
    again.publish(lab.PARAMS, step=0)
    again.resend()
    later = again.take(8, purpose="value_pretraining").trajectories
    assert len({one.task_id for one in (*found, *later)}) == 12
    assert again.book.counts()["trained"] == 12
    again.delete_covered()
    assert not {one.key for one in (*found, *later)} & set(again.store.keys())
