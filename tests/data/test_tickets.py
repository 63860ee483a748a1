"""Tickets: numbering, lineage through failures and restores, admission."""

import copy
import json

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from jaxrl_single import types, workdir
from jaxrl_single.data import prompts, tickets

TASKS = [types.Task(f"t{n}", f"{n}+1", str(n + 1), {"level": n}) for n in range(5)]


def book(max_attempts=2, run_id="run"):
    return tickets.TicketBook(
        run_id, prompts.TaskIterator(TASKS, seed=0, shuffle=False), max_attempts=max_attempts
    )


def keys(batch):
    return [ticket.key for ticket in batch]


def test_numbers_count_up_in_series_of_their_own():
    """What is evaluated must not move the numbers, and so the randomness, of training."""
    one = book()
    first = one.issue(2, purpose="value_pretraining")
    evals = one.issue_eval(TASKS[:2], policy_version=7, purpose="eval/rl@0", temperature=0.5)
    more = one.issue(1, temperature=0.8)
    gate = one.issue_eval(TASKS[:1], policy_version=7, purpose="gate@0", series="gate")
    assert [t.number for t in first + more] == [0, 1, 2]
    assert [t.number for t in evals] == [500_000_000, 500_000_001]
    assert [t.number for t in gate] == [900_000_000]
    assert [t.group_id for t in first + evals + more] == [0, 1, 500_000_000, 500_000_001, 2]
    assert [t.task.id for t in first + more] == ["t0", "t1", "t2"]
    assert {(t.split, t.policy_version, t.temperature) for t in evals} == {("eval", 7, 0.5)}
    assert {(t.split, t.policy_version) for t in first + more} == {("train", None)}
    assert [t.purpose for t in (first[0], evals[0], more[0])] == [
        "value_pretraining",
        "eval/rl@0",
        "rl",
    ]
    assert {t.run_id for t in first + evals + more} == {"run"}


def test_groups_share_a_task_and_are_whole():
    batch = book().issue(7, group_size=3)
    assert [t.group_id for t in batch] == [0, 0, 0, 3, 3, 3]
    assert [t.task.id for t in batch] == ["t0"] * 3 + ["t1"] * 3
    assert [t.number for t in batch] == list(range(6))


def test_admission_counts_in_flight_and_stored_training_tickets():
    one = book()
    assert one.room(12) == 12
    batch = one.issue(12)
    one.issue_eval(TASKS, policy_version=0, purpose="eval")
    assert one.room(12) == 0
    for key in keys(batch)[:6]:
        assert one.mark_stored(key)
    assert one.room(12) == 0
    one.mark_trained(keys(batch)[:4])
    one.mark_dropped(keys(batch)[4:6])
    assert one.room(12) == 6
    assert one.room(4) == 0
    assert one.issue(-3) == []


def test_counts_account_for_every_written_training_trajectory():
    one = book()
    batch = keys(one.issue(6))
    for key in batch[:4]:
        one.mark_stored(key)
    one.mark_trained(batch[:2])
    one.mark_dropped(batch[2:3])
    one.mark_error(batch[4])
    counts = one.counts()
    assert counts == {"written": 5, "trained": 2, "dropped_stale": 1, "errors": 1, "pending": 1}
    assert counts.keys() == workdir.NOBODY.keys()
    assert keys(one.stored()) == batch[3:4]
    assert keys(one.in_flight()) == [batch[5], "000000004-1"]


def test_a_failed_episode_is_retried_as_the_next_attempt_and_then_given_up():
    one = book(max_attempts=3)
    (ticket,) = one.issue(1)
    for attempt in (1, 2):
        retry = one.mark_error(ticket.key)
        assert (retry.number, retry.attempt, retry.task) == (0, attempt, ticket.task)
        assert not one.is_open(ticket.key)
        assert not one.mark_stored(ticket.key)  # a late answer of the attempt given up
        assert one.issue(0) == [retry]
        assert one.issue(0) == []
        ticket = retry
    assert one.mark_error(ticket.key) is None
    assert one.issue(0) == []
    assert one.counts()["errors"] == 3
    assert one.consecutive_errors == 3
    assert one.room(1) == 1


def test_consecutive_errors_start_again_after_a_success():
    one = book()
    batch = keys(one.issue(3))
    one.mark_error(batch[0])
    one.mark_error(batch[1])
    assert one.consecutive_errors == 2
    one.mark_stored(batch[2])
    assert one.consecutive_errors == 0


def test_a_torn_file_of_a_stored_ticket_is_retried():
    one = book()
    (ticket,) = one.issue(1)
    one.mark_stored(ticket.key)
    retry = one.mark_error(ticket.key)
    assert one.stored() == []
    assert one.issue(0) == [retry]


def test_second_copies_and_strangers_are_not_used():
    one = book()
    (ticket,) = one.issue(1)
    assert one.mark_stored(ticket.key)
    assert not one.mark_stored(ticket.key)
    assert not one.mark_stored("000000077-0")
    one.mark_trained([ticket.key])
    assert not one.mark_stored(ticket.key)  # trained once


@pytest.mark.parametrize("mark", ["mark_trained", "mark_dropped", "mark_evaluated"])
def test_only_stored_tickets_can_be_consumed(mark):
    one = book()
    (ticket,) = one.issue(1)
    with pytest.raises(tickets.UnknownTicket, match="has no trajectory in the store"):
        getattr(one, mark)([ticket.key])
    one.mark_stored(ticket.key)
    getattr(one, mark)([ticket.key])
    with pytest.raises(tickets.UnknownTicket):
        getattr(one, mark)([ticket.key])


def test_an_unknown_failure_is_the_callers_fault():
    one = book()
    with pytest.raises(tickets.UnknownTicket, match="000000009-0 is not open"):
        one.mark_error("000000009-0")


def test_restore_sends_what_is_not_stored_first_and_goes_on_with_the_same_tasks():
    one = book()
    batch = one.issue(4)
    one.mark_stored(batch[0].key)
    one.mark_stored(batch[1].key)
    one.mark_trained([batch[0].key])
    (evaluation,) = one.issue_eval(TASKS[4:], policy_version=2, purpose="eval/rl@1")
    state = json.loads(json.dumps(one.state()))
    lost = one.issue(3)  # issued after the checkpoint
    other = book()
    other.restore(state)
    assert other.mark_stored(batch[1].key)  # found in the store
    assert not other.mark_stored(batch[0].key)  # trained before the checkpoint
    assert not other.mark_stored(lost[0].key)  # of another lineage
    again = other.issue(3)
    assert again == [*batch[2:], evaluation, *lost]
    assert other.counts() == {**one.counts(), "pending": 1}
    assert other.issue(0) == []


def test_a_failure_found_in_the_store_after_a_restore_is_retried_and_not_sent_as_it_was():
    one = book()
    (ticket,) = one.issue(1)
    other = book()
    other.restore(one.state())
    retry = other.mark_error(ticket.key)
    assert retry.attempt == 1
    assert other.issue(0) == [retry]


def test_restore_can_skip_numbers_that_may_still_be_in_use():
    one = book()
    one.issue(2)
    state = one.state()
    other = book()
    other.restore(state, used=[49, 3])
    assert [t.number for t in other.issue(2)] == [0, 1, 50, 51]
    other.restore(state, used=[0])
    assert [t.number for t in other.issue(1)] == [0, 1, 2]
    other.restore(state, used=[500_000_006])
    assert [t.number for t in other.issue(1)] == [0, 1, 2]
    evals = other.issue_eval(TASKS[:1], policy_version=0, purpose="rl@0")
    assert [t.number for t in evals] == [500_000_007]


def test_restore_refuses_another_run_and_broken_states():
    one = book()
    one.issue(1)
    with pytest.raises(ValueError, match="of run 'run', this run is 'other'"):
        book(run_id="other").restore(one.state())
    broken = copy.deepcopy(one.state())
    broken["open"][0]["attempt"] = "0"
    with pytest.raises(tickets.InvalidTicket, match="attempt is '0'"):
        book().restore(broken)
    with pytest.raises(ValueError, match="max_attempts is 0"):
        book(max_attempts=0)


def test_json_keeps_every_field():
    ticket = types.Ticket("r", 3, 1, TASKS[2], "eval", 0.5, 9, 2, "eval/rl@3")
    assert tickets.from_json(json.loads(json.dumps(tickets.to_json(ticket)))) == ticket


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("number", "3", "number is '3'"),
        ("number", True, "number is True"),
        ("number", -1, "number -1"),
        ("attempt", 1.0, r"attempt is 1\.0"),
        ("temperature", 0, "temperature 0"),
        ("temperature", float("nan"), "temperature nan"),
        ("policy_version", "latest", "policy_version is 'latest'"),
        ("split", "test", "split is 'test'"),
        ("task", {"id": "x"}, "task has wrong fields"),
        ("task", {"id": 1, "question": "", "answer": ""}, "must be strings"),
        ("surprise", 1, "found .*surprise"),
    ],
)
def test_json_that_is_no_ticket_is_refused(field, value, complaint):
    fields = tickets.to_json(types.Ticket("r", 3, 1, TASKS[2]))
    with pytest.raises(tickets.InvalidTicket, match=complaint):
        tickets.from_json({**fields, field: value})


def test_json_with_a_missing_field_is_refused():
    for fields in ([], None, {"number": 1}):
        with pytest.raises(tickets.InvalidTicket, match="a ticket has the fields"):
            tickets.from_json(fields)


class Lineage(stateful.RuleBasedStateMachine):
    """Random lives of a book with crashes: whatever happens, nothing is trained twice or lost.

    `fates` holds what became of each number in the present lineage, and `attempts` its newest
    attempt; a crash goes back to those of the checkpoint. `files` are the trajectories on disk:
    they survive crashes, and go when a checkpoint covers their end. `sent` are all tickets that
    any worker may still hold, those of lost lineages included.
    """

    def __init__(self):
        super().__init__()
        self.book = book(max_attempts=2)
        self.files = {}  # key -> number
        self.sent = {}
        self.fates = {}
        self.attempts = {}
        self.checkpoint()

    @stateful.rule(n=st.integers(0, 4), group_size=st.integers(1, 2))
    def issue(self, n, group_size):
        for ticket in self.book.issue(n, group_size=group_size):
            assert self.fates.get(ticket.number) is None
            assert self.attempts.get(ticket.number, 0) == ticket.attempt
            assert ticket.key not in self.files
            self.fates[ticket.number] = None
            self.attempts[ticket.number] = ticket.attempt
            self.sent[ticket.key] = ticket

    @stateful.rule(data=st.data())
    def finish(self, data):
        """A worker stores the trajectory of any ticket ever sent."""
        if self.sent:
            ticket = self.sent[data.draw(st.sampled_from(sorted(self.sent)))]
            wanted = (
                self.fates.get(ticket.number, "never issued") is None
                and self.attempts[ticket.number] == ticket.attempt
                and ticket.key not in self.files
            )
            assert self.book.mark_stored(ticket.key) == wanted
            if wanted:
                self.files[ticket.key] = ticket.number

    @stateful.rule(data=st.data())
    def fail(self, data):
        waiting = [ticket for ticket in self.book.in_flight() if ticket.key in self.sent]
        if waiting:
            ticket = data.draw(st.sampled_from(waiting))
            if self.book.mark_error(ticket.key) is None:
                assert ticket.attempt == 1
                self.fates[ticket.number] = "given up"
            else:
                self.attempts[ticket.number] += 1

    @stateful.rule(data=st.data(), fate=st.sampled_from(("trained", "dropped")))
    def consume(self, data, fate):
        stored = [ticket.key for ticket in self.book.stored()]
        if stored:
            chosen = data.draw(st.lists(st.sampled_from(stored), unique=True))
            (self.book.mark_trained if fate == "trained" else self.book.mark_dropped)(chosen)
            for key in chosen:
                assert self.fates[self.files[key]] is None
                self.fates[self.files[key]] = fate

    @stateful.rule()
    def checkpoint(self):
        self.saved = (json.dumps(self.book.state()), dict(self.fates), dict(self.attempts))
        self.files = {key: n for key, n in self.files.items() if self.fates[n] is None}

    @stateful.rule()
    def crash(self):
        state, fates, attempts = self.saved
        self.book = book(max_attempts=2)
        used = [ticket.number for ticket in self.sent.values()]
        self.book.restore(json.loads(state), used=used)
        self.fates, self.attempts = dict(fates), dict(attempts)
        self.files = {key: n for key, n in self.files.items() if self.book.mark_stored(key)}

    @stateful.invariant()
    def nothing_is_lost(self):
        open_numbers = [t.number for t in self.book.in_flight() + self.book.stored()]
        assert sorted(open_numbers) == sorted(n for n, fate in self.fates.items() if fate is None)

    @stateful.invariant()
    def counts_agree(self):
        counts = self.book.counts()
        fates = list(self.fates.values())
        waiting = [key for key, number in self.files.items() if self.fates[number] is None]
        assert counts["trained"] == fates.count("trained")
        assert counts["dropped_stale"] == fates.count("dropped")
        assert counts["pending"] == len(waiting)
        # Each attempt after the first follows an error, and so does giving up.
        assert counts["errors"] == sum(self.attempts.values()) + fates.count("given up")
        assert counts["written"] == sum(counts.values()) - counts["written"]


Lineage.TestCase.settings = hypothesis.settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestLineage = Lineage.TestCase


def test_withdrawn_tickets_are_closed_whether_or_not_they_were_stored():
    one = book()
    evals = one.issue_eval(TASKS[:3], policy_version=0, purpose="rl@0")
    one.mark_stored(evals[0].key)
    one.withdraw(keys(evals[:2]))
    assert one.in_flight("eval") == [evals[2]]
    assert one.stored("eval") == []
    with pytest.raises(tickets.UnknownTicket):
        one.withdraw([evals[0].key])
