"""How rollouts find the samplers of a run."""

import json
import os
import socket
import subprocess
import sys

import pytest

from configs import common
from jaxrl_single import workdir
from jaxrl_single.stages import addresses


@pytest.fixture
def paths(tmp_path):
    return workdir.create(tmp_path / "run")[0]


def write(paths, name, **changes):
    record = {"url": "http://127.0.0.1:1", "hostname": socket.gethostname(), "pid": os.getpid()}
    paths.samplers.mkdir(exist_ok=True)
    (paths.samplers / f"{name}.json").write_text(json.dumps(record | changes))


def test_samplers_come_and_go(paths):
    assert addresses.urls(paths) == []
    one = addresses.announce(paths, "sampler-1", host="127.0.0.1", port=4001)
    zero = addresses.announce(paths, "sampler-0", host="localhost", port=4000)
    assert (
        addresses.urls(paths) == [zero, one] == ["http://localhost:4000", "http://127.0.0.1:4001"]
    )
    addresses.withdraw(paths, "sampler-0")
    addresses.withdraw(paths, "sampler-0")
    assert addresses.urls(paths) == [one]
    # One that was started again listens somewhere else, under the same name.
    again = addresses.announce(paths, "sampler-1", host="127.0.0.1", port=4007)
    assert addresses.urls(paths) == [again]


def test_a_sampler_on_all_addresses_is_called_by_its_machine(paths):
    url = addresses.announce(paths, "sampler", host="0.0.0.0", port=80)
    assert url == f"http://{socket.gethostname()}:80"
    assert addresses.announce(paths, "sampler", host="::1", port=80) == "http://[::1]:80"


def test_what_can_not_be_reached_is_left_out(paths):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    write(paths, "dead", pid=dead.pid)
    write(paths, "loopback-of-another-machine", hostname="elsewhere", pid=dead.pid)
    write(paths, "other-machine", url="http://elsewhere:5", hostname="elsewhere", pid=dead.pid)
    write(paths, "here", url="http://127.0.0.1:7")
    (paths.samplers / ".half-written.json").write_text("{")
    assert addresses.urls(paths) == ["http://127.0.0.1:7", "http://elsewhere:5"]


def test_given_urls_are_the_only_ones(paths):
    addresses.announce(paths, "sampler", host="127.0.0.1", port=1)
    assert list(addresses.source(paths, ())()) == ["http://127.0.0.1:1"]
    assert list(addresses.source(paths, ("http://a:1/", "http://b:2"))()) == [
        "http://a:1",
        "http://b:2",
    ]


def test_names_and_ports_of_the_samplers_of_a_run():
    config = common.base()
    assert addresses.sampler_names(config) == ["sampler"]
    config.sampler.num_processes = 3
    assert addresses.sampler_names(config) == ["sampler-0", "sampler-1", "sampler-2"]
    assert addresses.port(config, "sampler-2") == 0
    config.sampler.port = 9000
    assert addresses.port(config, "sampler-2") == 9002
    assert addresses.port(config, "sampler-somewhere-77") == 9000
    config.rollout.sampler_urls = ("http://a:1",)
    assert addresses.sampler_names(config) == []


def test_the_rollout_process_imports_no_jax():
    program = "import sys; from jaxrl_single.run import rollout; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
