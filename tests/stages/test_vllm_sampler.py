"""Who follows the trainer for vLLM; tests/e2e has a real server."""

import asyncio
import time

import pytest

from configs import tiny_sao_vllm
from jaxrl_single import wire, workdir
from jaxrl_single.models import api, sizes
from jaxrl_single.stages import vllm_sampler
from jaxrl_single.weights import base, vllm


class Server:
    """Stands for a server's weights; `script` has what the next loadings raise, None = nothing."""

    def __init__(self, *script):
        self.script = list(script)
        self.label = None
        self.loaded = []

    def version(self):
        return self.label

    def load(self, version, params):
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error
        self.label = version
        self.loaded.append((version, params))


@pytest.fixture
def follow(monkeypatch):
    """follow(server) -> a started sampler; stops them all."""
    monkeypatch.setattr(vllm_sampler, "_RETRY_S", 0.01)
    started = []

    def start(server, patience_s=5.0):
        sampler = vllm_sampler.VllmSampler(server, lambda restore: restore, patience_s=patience_s)
        sampler.start()
        started.append(sampler)
        return sampler

    yield start
    for sampler in started:
        sampler.stop()


def wait(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_server_that_is_not_up_yet_is_waited_for(follow):
    server = Server(vllm.ServerLost("refused"), vllm.ServerLost("refused"))
    sampler = follow(server)
    assert sampler.version == -1
    sampler.load_weights(4, "params")
    wait(lambda: sampler.version == 4)
    assert server.loaded == [(4, "params")]
    assert sampler.error is None


def test_version_that_is_refused_leaves_the_one_before(follow):
    server = Server(None, base.InvalidWeights("torn"))
    sampler = follow(server)
    sampler.load_weights(4, "good")
    wait(lambda: sampler.version == 4)
    sampler.load_weights(5, "torn")
    wait(lambda: not server.script)
    sampler.load_weights(6, "good again")
    wait(lambda: sampler.version == 6)
    assert server.loaded == [(4, "good"), (6, "good again")]
    assert sampler.error is None


@pytest.mark.parametrize("error", [ValueError("another shape"), vllm.ServerLost("refused")])
def test_without_a_first_version_the_sampler_ends(follow, error):
    sampler = follow(Server(*[error] * 1000), patience_s=0.05)
    sampler.load_weights(4, "params")
    wait(lambda: sampler.error is not None)
    assert sampler.error is error
    assert sampler.version == -1


def test_server_that_was_started_again_gets_the_newest_weights_again(follow):
    server = Server()
    sampler = follow(server)
    sampler.load_weights(4, "params")
    wait(lambda: sampler.version == 4)
    server.label = None
    sampler.client()  # what a client calls when it meets weights without a version
    wait(lambda: server.label == 4)
    sampler.client()  # the next one comes too late to have a reason
    time.sleep(0.05)
    assert server.loaded == [(4, "params")] * 2


class Engines:
    """The following sampler answers with `versions`; an engine of ours takes over."""

    def __init__(self, version, *versions):
        self.following = self
        self.client = self
        self.version = version
        self.versions = list(versions)
        self.asked = []

    async def generate(self, request):
        assert not request.record
        found = self.versions.pop(0)
        return wire.Completion([1] * len(found), [-1.0] * len(found), [0.0], found, "length")

    def engine_for(self, version):
        self.asked.append(version)
        raise LookupError("an engine of ours")


def test_evaluation_leaves_vllm_when_that_serves_another_version():
    request = wire.Request("s", 1, 0, 0, [1], 2, ())
    engines = Engines(4, [4, 4], [4, 5])
    client = vllm_sampler.PinnedClient(engines, 4)
    assert asyncio.run(client.generate(request)).policy_versions == [4, 4]
    assert engines.asked == []
    with pytest.raises(LookupError, match="an engine of ours"):
        asyncio.run(client.generate(request))
    assert engines.asked == [4]
    # Another version from the beginning: vLLM is not asked at all.
    with pytest.raises(LookupError, match="an engine of ours"):
        asyncio.run(vllm_sampler.PinnedClient(engines, 3).generate(request))


def test_algorithm_that_reads_draws_is_refused(tmp_path):
    config = tiny_sao_vllm.get_config("tiny")
    with config.unlocked():
        config.algorithm = {"name": "klpo"}
    policy = api.build_policy(sizes.get("tiny_vllm", vocab_size=32))
    with pytest.raises(vllm_sampler.Unsuited, match="reads aux, which vLLM does not give"):
        vllm_sampler.make(config, workdir.Workdir(tmp_path), policy)
    assert list(tmp_path.iterdir()) == []
