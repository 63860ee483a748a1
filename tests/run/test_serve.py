"""`python -m jaxrl_single.run.serve`: a checkpoint or a run behind the endpoint."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request

import jax
import numpy as np
import openai
import pytest

from configs import tiny_sao
from jaxrl_single import workdir
from jaxrl_single.models import api, hf
from jaxrl_single.run import serve
from jaxrl_single.stages import build
from jaxrl_single.stages import world as world_lib
from jaxrl_single.supervise import workdir_config
from jaxrl_single.weights import filesystem

CHAT = pathlib.Path(__file__).parent.parent / "data" / "golden" / "chat"
SHAPE = ("--port=0", "--num_slots=2", "--context_length=64")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workdir of a run that has published versions 0 and 3."""
    paths, run_id = workdir.create(tmp_path_factory.mktemp("run"))
    config = tiny_sao.get_config("tiny")
    workdir_config.check(paths, config.to_dict())
    world = world_lib.make(config)
    world_lib.save_text(config, world, paths.tokenizer)
    policy, _ = build.models(config, world.language.vocab_size)
    weights = filesystem.FileWeights(paths.weights, run_id)
    for version in (0, 3):
        weights.publish(version, policy.init(jax.random.key(version)), metadata={})
    return paths


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small Qwen3 with a tokenizer and a chat template."""
    directory = tmp_path_factory.mktemp("model") / "small"
    shape = hf.describe(pathlib.Path(__file__).parent.parent / "models/golden/qwen3").model
    shape = dataclasses.replace(shape, vocab_size=296, dtype="float32")
    params = api.build_policy(shape).init(jax.random.key(0))
    hf.save(directory, shape, params, context_length=64, stop_token_ids=(2,), tokenizer=CHAT)
    return directory


def refused(monkeypatch, capsys, *arguments):
    """What a command that must not serve says, in this process."""
    monkeypatch.setattr(sys, "argv", ["serve", *map(str, arguments)])
    assert serve.main() == 2
    said = capsys.readouterr()
    *_, last = said.err.splitlines()
    assert last.startswith("error: ")
    assert "Traceback" not in said.err
    assert said.out == ""
    return last


def test_wrong_inputs_get_a_sentence(run, checkpoint, monkeypatch, capsys, tmp_path):
    empty, _ = workdir.create(tmp_path / "empty")
    empty.config.write_bytes(run.config.read_bytes())
    bare = tmp_path / "bare"
    hf.save(bare, *hf.load(checkpoint), context_length=64)
    for arguments, words in (
        ((f"--model={tmp_path / 'nowhere'}",), "there is no such directory or file"),
        ((f"--model={checkpoint}", "--version=3"), "is not the workdir of a run; --version is of"),
        ((f"--model={bare}",), "holds no tokenizer.json"),
        ((f"--model={run.root}", "--version=7"), r"no version 7; .*\(there are \[0, 3\]\)"),
        ((f"--model={run.root}", "--version=best"), "has no best version"),
        ((f"--model={empty.root}",), "has not published weights"),
        ((f"--model={checkpoint}", "--host=0.0.0.0"), "so it needs a token; put a secret"),
        ((f"--model={checkpoint}", "--tool_format=hermos"), "tool format 'hermos'; known are"),
        ((f"--model={checkpoint}", "--num_slots=0"), "num_slots is 0, it must be positive"),
        ((f"--model={checkpoint}", "--port=70000"), "--port is 70000, ports are 0"),
    ):
        assert re.search(words, refused(monkeypatch, capsys, *SHAPE, *arguments)), words


def test_ctrl_c_while_the_weights_are_read_is_no_error(checkpoint, monkeypatch, capsys):
    def interrupted(path, dtype):
        raise KeyboardInterrupt

    monkeypatch.setattr(serve.pretrained, "open_checkpoint", interrupted)
    monkeypatch.setattr(sys, "argv", ["serve", f"--model={checkpoint}"])
    assert serve.main() == 0
    assert capsys.readouterr().err == "reading the weights\n"


class Served:
    """The command in a process of its own, from its announcement on."""

    def __init__(self, *arguments, **env):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jaxrl_single.run.serve", *SHAPE, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | env,
        )
        lines = []
        while not lines or not lines[-1].startswith("    print("):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            lines.append(line)
        self.said = "".join(lines)
        self.url = re.search(r"http://127\.0\.0\.1:\d+", self.said)[0]

    def ask(self, path, body=None, **headers):
        """(status, JSON)"""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def end(self, number):
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        assert (self.process.returncode, "Traceback" in errors) == (0, False), errors


@pytest.mark.slow
def test_a_run_is_served_as_it_was_published(run):
    served = Served(f"--model={run.root}", "--version=0", JAXRL_SAMPLER_TOKEN="secret")
    assert f"version 0 of {run.root}" in served.said
    body = {"prompt": [1, 2, 3], "max_tokens": 3, "return_token_ids": True, "model": "policy"}
    assert served.ask("/v1/completions", body)[0] == 401
    token = {"Authorization": "Bearer secret"}
    status, answer = served.ask("/v1/completions", body | {"seed": 4}, **token)
    (choice,) = answer["choices"]
    assert (status, choice["policy_versions"]) == (200, [0] * len(choice["token_ids"]))
    config = tiny_sao.get_config("tiny")
    policy, _ = build.models(config, world_lib.make(config).language.vocab_size)
    params = policy.init(jax.random.key(0))
    tokens = np.array([[1, 2, 3, *choice["token_ids"]]])
    hidden = policy.hidden(params, tokens, np.arange(tokens.size)[None], np.ones_like(tokens))
    table = jax.nn.log_softmax(hidden[0] @ policy.unembedding(params).T)
    expected = [table[2 + n, token] for n, token in enumerate(choice["token_ids"])]
    np.testing.assert_allclose(choice["rollout_logprobs"], expected, atol=2e-5)
    status, answer = served.ask("/v1/completions", body | {"policy_version": 3}, **token)
    assert (status, answer["error"]["code"]) == (400, "invalid_weights")
    assert "has version 0 alone" in answer["error"]["message"]
    served.end(signal.SIGTERM)


@pytest.mark.slow
def test_what_is_printed_works_as_it_is_and_ctrl_c_ends_it(checkpoint, monkeypatch, capsys):
    served = Served(f"--model={checkpoint}")
    snippet = textwrap.dedent(served.said.partition("import openai")[2])
    exec("import openai\n" + snippet, {})
    assert "ChatCompletion" in capsys.readouterr().out
    curl = re.search(r"^ +(curl .*)$", served.said, re.M)[1]
    assert f"{served.url}/v1/chat/completions" in curl
    assert served.ask("/v1/models")[1]["data"][1]["id"] == "small"
    for path in ("/v1/responses", "/v1/responses/abc", "/responses"):
        status, answer = served.ask(path, {"model": "policy", "input": "hello"})
        assert (status, answer["error"]["code"]) == (404, "unknown_route")
        assert "/v1/chat/completions" in answer["error"]["message"]
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match="use /v1/chat/completions"),
    ):
        client.responses.create(model="policy", input="hello")
    port = f"--port={served.url.rpartition(':')[2]}"
    said = refused(monkeypatch, capsys, *SHAPE, f"--model={checkpoint}", port)
    assert "choose another --port, 0 takes any free one" in said
    served.end(signal.SIGINT)
