"""The order of tasks: epochs, shuffling, exact resume."""

import collections
import json

import pytest

from jaxrl_single import types
from jaxrl_single.data import prompts

TASKS = [types.Task(f"t{n}", f"{n}+{n}", str(2 * n)) for n in range(7)]


def _take(iterator, count):
    return [iterator.next().id for _ in range(count)]


def test_each_epoch_holds_each_task_once_in_another_order():
    ids = _take(prompts.TaskIterator(TASKS, seed=0), 21)
    epochs = [ids[:7], ids[7:14], ids[14:]]
    assert all(sorted(epoch) == [task.id for task in TASKS] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_order_depends_on_the_seed_only():
    assert _take(prompts.TaskIterator(TASKS, seed=1), 30) == _take(
        prompts.TaskIterator(TASKS, seed=1), 30
    )
    assert _take(prompts.TaskIterator(TASKS, seed=1), 30) != _take(
        prompts.TaskIterator(TASKS, seed=2), 30
    )
    assert _take(prompts.TaskIterator(TASKS, seed=1, shuffle=False), 8) == [
        *(task.id for task in TASKS),
        "t0",
    ]


@pytest.mark.parametrize("cut", [0, 1, 7, 10])
def test_resume_continues_exactly(cut):
    """The same tasks in the same order as without the break, through JSON."""
    straight = _take(prompts.TaskIterator(TASKS, seed=3), 25)
    before = prompts.TaskIterator(TASKS, seed=3)
    head = _take(before, cut)
    state = json.loads(json.dumps(before.state()))
    _take(before, 4)  # drawn after the checkpoint and lost with the process
    after = prompts.TaskIterator(TASKS, seed=3)
    after.restore(state)
    tail = _take(after, 25 - cut)
    assert head + tail == straight
    counts = collections.Counter((head + tail)[:21])
    assert set(counts.values()) == {3}


def test_large_sources_are_computed_on_demand():
    class Endless:
        def __init__(self):
            self.asked = []

        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            self.asked.append(index)
            return types.Task(str(index), "", "")

    source = Endless()
    ids = _take(prompts.TaskIterator(source, seed=0), 50)
    assert len(set(ids)) == 50
    assert len(source.asked) == 50


@pytest.mark.parametrize(
    ("tasks", "options"),
    [(TASKS[:6], {}), (TASKS, {"seed": 4}), (TASKS, {"shuffle": False})],
)
def test_a_position_of_another_order_is_refused(tasks, options):
    state = prompts.TaskIterator(TASKS, seed=3).state()
    other = prompts.TaskIterator(tasks, **{"seed": 3, **options})
    with pytest.raises(ValueError, match="restore with the same tasks and seed"):
        other.restore(state)


def test_no_tasks_is_an_error():
    with pytest.raises(ValueError, match="no tasks"):
        prompts.TaskIterator([], seed=0)


def test_tasks_come_in_proportion_to_their_weights_and_resume_exactly():
    def weight(task):
        return {"t0": 1.0, "t1": 0.5}.get(task.id, 0.0)

    iterator = prompts.TaskIterator(TASKS[:3], seed=0)
    iterator.prefer(weight)
    counts = collections.Counter(_take(iterator, 300))
    assert counts.keys() == {"t0", "t1"}
    assert abs(counts["t0"] / 300 - 2 / 3) < 0.08
    again = prompts.TaskIterator(TASKS[:3], seed=0)
    again.restore(json.loads(json.dumps(iterator.state())))
    again.prefer(weight)
    assert _take(again, 20) == _take(iterator, 20)


def test_weights_of_zero_everywhere_do_not_hang(monkeypatch):
    monkeypatch.setattr(prompts, "_MAX_SKIPS", 10)
    iterator = prompts.TaskIterator(TASKS, seed=0)
    iterator.prefer(lambda task: 0.0)
    assert iterator.next() in TASKS
