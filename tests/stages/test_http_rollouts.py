"""Sampler and rollout processes as they are, in threads: tickets in, trajectories out."""

import asyncio
import json
import threading
import time
import urllib.request

import jax
import numpy as np
import pytest

from configs import common
from jaxrl_single import store as store_lib
from jaxrl_single import types, workdir
from jaxrl_single.data import ticket_files
from jaxrl_single.rollout import scheduler
from jaxrl_single.sampler import local_client
from jaxrl_single.stages import addresses, build, rollout_process, sampler_process
from jaxrl_single.stages import world as world_lib
from jaxrl_single.weights import filesystem

NAMES = ("sampler-0", "sampler-1")


class Run:
    """A run without a trainer: the test publishes weights and issues tickets."""

    def __init__(self, root):
        self.config = common.base()
        common.shrink(self.config)
        self.config.model.size = "tiny"
        self.config.rollout.client = "http"
        self.config.sampler.num_processes = len(NAMES)
        self.paths, self.run_id = workdir.create(root)
        self.world = world_lib.make(self.config)
        self.policy, _ = build.models(self.config, self.world.language.vocab_size)
        self.params = [self.policy.init(jax.random.key(seed)) for seed in range(2)]
        self.weights = filesystem.FileWeights(self.paths.weights, self.run_id)
        self.store = store_lib.TrajectoryStore(self.paths.trajectories, self.run_id)
        self.errors = []
        self._stopping = threading.Event()
        self._threads = []

    def publish(self, version):
        self.weights.publish(version, jax.device_get(self.params[version]), metadata={})

    def start(self, body, **options):
        def guarded():
            try:
                body(
                    self.config,
                    self.paths,
                    stopping=self._stopping.is_set,
                    beat=lambda: None,
                    **options,
                )
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=guarded))
        self._threads[-1].start()

    def stop(self):
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads)

    def tickets(self, numbers, **fields):
        made = [
            types.Ticket(self.run_id, n, 0, self.world.train_tasks[n], temperature=1.0, **fields)
            for n in numbers
        ]
        ticket_files.write(self.paths.tickets, made)
        return made

    def wait(self, found):
        deadline = time.monotonic() + 120
        while not (value := found()):
            assert not self.errors, self.errors
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return value

    def collect(self, tickets):
        """Their trajectories by key, when all are there."""
        keys = {ticket.key for ticket in tickets}
        self.wait(lambda: keys <= set(self.store.keys()))
        for split in types.SPLITS:
            self.store.scan(split)
        return {key: self.store.read(key) for key in keys}

    def directly(self, tickets, version):
        """The same tickets on an engine in this thread."""
        engine = sampler_process.make_engine(
            self.config, self.policy, self.params[version], version
        )
        client = local_client.InlineClient(engine)
        runner = scheduler.Scheduler(
            sink=lambda trajectory: None,
            make_env=self.world.make_env,
            client_for=lambda ticket: client,
            chat=self.world.language,
            limits=self.world.limits,
            max_in_flight=8,
        )
        return {found.key: found for found in asyncio.run(runner.drain(tickets))}


def ask(url, verb, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{url}/{verb}", data) as answer:
        return json.load(answer)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, trajectory in found.items():
        assert trajectory.error is None
        for name in types.TOKEN_FIELDS:
            np.testing.assert_array_equal(
                getattr(trajectory, name), getattr(expected[key], name), err_msg=f"{key} {name}"
            )


@pytest.fixture
def run(tmp_path, monkeypatch):
    made = Run(tmp_path / "run")
    # Programs are compiled for a policy; in processes of their own each has one anyway.
    monkeypatch.setattr(build, "models", lambda config, vocab_size: (made.policy, None))
    yield made
    made.stop()
    assert not made.errors


def test_episodes_over_http_are_those_of_an_engine_beside_the_rollout(run):
    """Bitwise, from two samplers, following the weights and pinned to a version."""
    run.publish(0)
    for count, name in enumerate(NAMES, start=1):  # one after the other: they share programs
        run.start(sampler_process.run, name=name)
        run.wait(lambda count=count: len(addresses.urls(run.paths)) == count)
    urls = addresses.urls(run.paths)
    first = run.tickets(range(8))
    run.start(rollout_process.run)
    assert_same(run.collect(first), run.directly(first, 0))

    run.publish(1)
    run.wait(lambda: all(ask(url, "version")["version"] == 1 for url in urls))
    second = run.tickets(range(8, 12))
    pinned = run.tickets(range(12, 16), split="eval", policy_version=0)
    assert_same(run.collect(second), run.directly(second, 1))
    assert_same(run.collect(pinned), run.directly(pinned, 0))
    assert not list(run.paths.tickets.iterdir())

    # Both have worked, and nobody holds a slot any more.
    found = [ask(url, "stats") for url in urls]
    assert all(numbers["tokens"] > 0 and numbers["swaps"] == 2 for numbers in found)
    assert [numbers["held_slots"] for numbers in found] == [0, 0]

    # Harnesses get text, stop strings included.
    body = {"prompt": "<user>1+2<end><assistant>", "max_tokens": 40, "seed": 1, "ignore_eos": True}
    (free,) = ask(urls[0], "v1/completions", body)["choices"]
    stop = free["text"][3:5]
    (stopped,) = ask(urls[0], "v1/completions", body | {"stop": stop})["choices"]
    assert stopped["text"] == free["text"].partition(stop)[0]

    # A version that is loaded by hand stays until the trainer publishes another one.
    assert ask(urls[0], "load_weights", {"version": 0}) == {"version": 0}
    run.wait(lambda: ask(urls[0], "version")["version"] == 0)
    time.sleep(5 * sampler_process._FOLLOW_S)
    assert ask(urls[0], "version")["version"] == 0

    # A torn version is not used.
    torn = run.paths.weights / "v000000002"
    torn.mkdir()
    (torn / "manifest.json").write_text("{")
    (torn / filesystem.MARKER).touch()
    time.sleep(5 * sampler_process._FOLLOW_S)
    assert ask(urls[1], "version")["version"] == 1
    third = run.tickets([20])
    assert_same(run.collect(third), run.directly(third, 0))
    run.stop()
    assert addresses.urls(run.paths) == []
