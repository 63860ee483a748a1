"""The scheduler: limits, order, failures, and that nothing is lost or run twice."""

import asyncio
import dataclasses

import numpy as np
import pytest

from jaxrl_single import store, types
from jaxrl_single.data import ticket_files
from jaxrl_single.envs import calculator, calculator_script, chat
from jaxrl_single.rollout import episode, scheduler, scripted

CHAT = chat.CharChat.build()
LIMITS = episode.Limits(max_turns=5, max_turn_tokens=12, max_tokens=96)
TASK = types.Task("t", "(37+58)*46", "4370")


def ticket(number, *, attempt=0, split="train"):
    return types.Ticket("run", number, attempt, TASK, split=split, group_id=number)


def client_for(order):
    rng = np.random.default_rng(order.number)
    script = calculator_script.CalculatorScript(order.task, mistake_rate=0.0, rng=rng)
    return scripted.ScriptedClient(script, CHAT)


class Yielding:
    """Gives the other episodes their turn at each request, as a sampler does."""

    def __init__(self, order):
        self._script = client_for(order)

    async def generate(self, request):
        await asyncio.sleep(0)
        return await self._script.generate(request)

    async def release(self, session):
        await self._script.release(session)


class Listed:
    """A ticket source in memory."""

    def __init__(self, *batches):
        self._batches = list(batches)
        self.finished = []

    def poll(self):
        return self._batches.pop(0) if self._batches else []

    def done(self, order):
        self.finished.append(order.key)


class Gate:
    """Environments that wait in `reset` until they are let through; counts who is inside."""

    def __init__(self):
        self.made = 0
        self.inside = 0
        self.most_inside = 0
        self.closed = 0
        self.open = asyncio.Event()

    def make(self):
        gate = self
        gate.made += 1

        class Env(calculator.Calculator):
            async def reset(self, task, seed):
                gate.inside += 1
                gate.most_inside = max(gate.most_inside, gate.inside)
                await gate.open.wait()
                return await super().reset(task, seed)

            async def close(self):
                gate.inside -= 1
                gate.closed += 1

        return Env()


def make(sink, **changes):
    options = {
        "sink": sink,
        "make_env": calculator.Calculator,
        "client_for": client_for,
        "chat": CHAT,
        "limits": LIMITS,
        "max_in_flight": 4,
        "source": "script",
        "poll_interval_s": 0.005,
        **changes,
    }
    return scheduler.Scheduler(**options)


def run(worker, until, timeout=20):
    asyncio.run(asyncio.wait_for(worker.run(until), timeout))


def test_every_ticket_is_run_once_delivered_and_then_done():
    source, delivered = Listed([ticket(0), ticket(1)], [], [ticket(2)]), []

    def sink(trajectory):
        assert trajectory.key not in source.finished  # done only after it is safe
        delivered.append(trajectory)

    worker = make(sink, tickets=source)
    run(worker, lambda: len(delivered) == 3)
    assert [trajectory.ticket for trajectory in delivered] == [0, 1, 2]
    assert source.finished == [ticket(n).key for n in range(3)]
    assert (worker.finished, worker.errors, worker.in_flight) == (3, 0, 0)
    assert all(trajectory.success for trajectory in delivered)


def test_at_most_max_in_flight_episodes_run():
    async def play():
        gate, delivered = Gate(), []
        worker = make(
            delivered.append,
            tickets=Listed([ticket(n) for n in range(10)]),
            make_env=gate.make,
            max_in_flight=3,
        )
        running = asyncio.create_task(worker.run(lambda: len(delivered) == 10))
        while gate.inside < 3:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert (gate.inside, worker.in_flight) == (3, 3)
        gate.open.set()
        await running
        return gate, delivered

    gate, delivered = asyncio.run(asyncio.wait_for(play(), 20))
    assert gate.most_inside == 3
    assert gate.closed == 10
    assert len({trajectory.key for trajectory in delivered}) == 10


def test_evaluation_goes_first_then_the_order_of_issue():
    order, delivered = [], []

    def note(t):
        order.append(t.number)
        return client_for(t)

    tickets = [ticket(4), ticket(2, attempt=1), ticket(2), ticket(9, split="eval"), ticket(3)]
    source = Listed(tickets, [ticket(11, split="eval"), ticket(10)])
    worker = make(delivered.append, tickets=source, client_for=note, max_in_flight=1)
    run(worker, lambda: len(delivered) == 7)
    assert order[:1] == [9]
    assert order[-1] == 10
    assert [n for n in order if n not in (9, 11)] == [2, 2, 3, 4, 10]
    assert [t.attempt for t in delivered if t.ticket == 2] == [0, 1]


def test_a_ticket_that_is_issued_again_while_it_runs_is_not_run_twice():
    async def play():
        gate, delivered = Gate(), []
        again = [ticket(0), ticket(1), ticket(2)]
        source = Listed([ticket(0), ticket(1)], again, again)
        worker = make(delivered.append, tickets=source, make_env=gate.make, max_in_flight=2)
        running = asyncio.create_task(worker.run(lambda: len(delivered) >= 3))
        while source._batches:
            await asyncio.sleep(0.005)
        gate.open.set()
        await running
        return [trajectory.ticket for trajectory in delivered]

    assert asyncio.run(asyncio.wait_for(play(), 20)) == [0, 1, 2]


def test_failed_episodes_are_delivered_and_the_others_go_on():
    def broken_env():
        broken_env.calls += 1
        if broken_env.calls == 2:
            raise OSError("no sandbox left")
        return calculator.Calculator()

    broken_env.calls = 0

    def no_version(t):
        if t.number == 2:
            raise LookupError("version 7 was pruned")
        return client_for(t)

    delivered = []
    worker = make(
        delivered.append,
        tickets=Listed([ticket(n) for n in range(5)]),
        make_env=broken_env,
        client_for=no_version,
        max_in_flight=1,
    )
    run(worker, lambda: len(delivered) == 5)
    for trajectory in delivered:
        types.validate(trajectory)
    errors = {t.ticket: t.error for t in delivered if t.error}
    assert errors.keys() == {1, 2}
    assert (errors[1].kind, errors[2].kind) == ("env", "sampler")
    assert errors[1].message.startswith("OSError: no sandbox left\nTraceback")
    assert "in no_version" in errors[2].message
    assert (worker.finished, worker.errors) == (5, 2)


def test_a_failing_sink_is_raised_and_the_rest_is_cancelled_and_closed():
    def sink(trajectory):
        raise OSError("disk full")

    async def play():
        gate = Gate()
        envs = iter([calculator.Calculator, gate.make, gate.make, gate.make])
        worker = make(
            sink, tickets=Listed([ticket(n) for n in range(4)]), make_env=lambda: next(envs)()
        )
        with pytest.raises(OSError, match="disk full"):
            await worker.run(lambda: False)
        assert gate.closed == 3

    asyncio.run(asyncio.wait_for(play(), 20))


def test_a_failing_ticket_source_is_raised():
    class Broken(Listed):
        def poll(self):
            raise PermissionError("tickets/")

    with pytest.raises(PermissionError):
        run(make(lambda trajectory: None, tickets=Broken()), lambda: False)


def test_stop_cancels_what_runs_starts_nothing_more_and_leaves_the_tickets_open():
    async def play():
        gate, source, stopping = Gate(), Listed([ticket(n) for n in range(5)]), []
        worker = make(lambda t: None, tickets=source, make_env=gate.make, max_in_flight=2)
        running = asyncio.create_task(worker.run(lambda: bool(stopping)))
        while gate.inside < 2:
            await asyncio.sleep(0)
        stopping.append(True)
        await running
        # Asserted here: the end of the event loop would cancel what `run` forgot.
        assert (gate.made, gate.closed, gate.inside) == (2, 2, 0)
        assert source.finished == []
        assert (worker.in_flight, worker.finished) == (0, 0)

    asyncio.run(asyncio.wait_for(play(), 20))


def test_cancelling_run_cleans_up():
    async def play():
        gate = Gate()
        worker = make(lambda t: None, tickets=Listed([ticket(0)]), make_env=gate.make)
        running = asyncio.create_task(worker.run(lambda: False))
        while gate.inside < 1:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert gate.closed == 1

    asyncio.run(asyncio.wait_for(play(), 20))


def test_heartbeat_goes_on_while_episodes_hang():
    async def play():
        gate, beats = Gate(), []
        worker = make(
            lambda t: None,
            tickets=Listed([ticket(0)]),
            make_env=gate.make,
            heartbeat=lambda: beats.append(gate.inside),
        )
        await worker.run(lambda: beats.count(1) >= 5)

    asyncio.run(asyncio.wait_for(play(), 20))


def test_drain_returns_the_order_of_tickets_and_delivers_the_order_of_finishing():
    def run_once():
        delivered = []
        numbers = [5, 3, 8, 1, 9, 2]
        tasks = calculator.CalculatorTasks(
            "train", num_operations=2, num_digits=2, max_result=999, operators="+-*", seed=0
        )
        short = types.Task("short", "1+2", "3")
        batch = [
            types.Ticket("run", n, 0, short if n in (9, 2) else tasks[n], group_id=n)
            for n in numbers
        ]
        worker = make(delivered.append, max_in_flight=6, client_for=Yielding)
        result = asyncio.run(worker.drain(batch))
        assert [t.ticket for t in result] == numbers
        assert {id(t) for t in result} == {id(t) for t in delivered}
        return [t.ticket for t in delivered]

    first = run_once()
    assert set(first[:2]) == {2, 9}  # two turns finish before three
    assert all(run_once() == first for _ in range(5))


@pytest.mark.parametrize("rounds", [1, 5, 40])
def test_when_episodes_start_does_not_depend_on_the_scheduler_being_woken(rounds):
    """The wake-up has a timer; the sampler's batches must not depend on when it fires."""

    def requests_in_order(sleepiness):
        log = []

        class Logged(Yielding):
            def __init__(self, order):
                super().__init__(order)
                self._number = order.number

            async def generate(self, request):
                log.append((self._number, request.turn))
                for _ in range(10):  # longer than a wake-up takes at its fastest
                    await asyncio.sleep(0)
                return await super().generate(request)

        class Sleepy(scheduler.Scheduler):
            async def _sleep(self, seconds):
                await super()._sleep(seconds)
                for _ in range(sleepiness):
                    await asyncio.sleep(0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "Scheduler", Sleepy)
            worker = make(lambda t: None, client_for=Logged, max_in_flight=3)
            # Of unequal length: while one place is empty, the other episodes go on.
            batch = [
                dataclasses.replace(ticket(n), task=types.Task("t", "1" + "+1" * (n % 3 + 1), ""))
                for n in range(8)
            ]
            asyncio.run(worker.drain(batch))
        return log

    assert requests_in_order(rounds) == requests_in_order(0)


def test_drain_of_nothing_and_repeated_drains():
    worker = make(lambda t: None)
    assert asyncio.run(worker.drain([])) == []
    assert [t.ticket for t in asyncio.run(worker.drain([ticket(1)]))] == [1]
    assert [t.ticket for t in asyncio.run(worker.drain([ticket(1), ticket(0)]))] == [1, 0]


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="max_in_flight is 0"):
        make(lambda t: None, max_in_flight=0)
    with pytest.raises(ValueError, match="can only drain"):
        run(make(lambda t: None), lambda: True)


def test_from_ticket_files_to_the_store_and_again_after_a_death(tmp_path):
    """It dies with work in hand, and its successor finishes the rest."""
    directory = tmp_path / "tickets"
    directory.mkdir()
    ticket_files.write(directory, [ticket(n) for n in range(6)])
    written = store.TrajectoryStore(tmp_path / "trajectories", "run")

    class Dies(ticket_files.FileTickets):
        def done(self, order):
            if order.number == 2:
                raise SystemError("died")  # after the store, before the ticket is handed in
            super().done(order)

    with pytest.raises(SystemError, match="died"):
        run(make(written.write, tickets=Dies(directory, "run"), max_in_flight=1), lambda: False)
    assert len(written.scan()) == 3
    again = store.TrajectoryStore(tmp_path / "trajectories", "run")
    worker = make(again.write, tickets=ticket_files.FileTickets(directory, "run"))
    run(worker, lambda: not list(directory.glob("*.json")))
    assert worker.finished == 4  # ticket 2 once more
    keys = again.scan()
    assert sorted(keys) == [ticket(n).key for n in range(6)]
    assert all(again.read(key).success for key in keys)
