"""What vLLM is told when weights change; tests/e2e has a real server."""

import http.server
import json
import threading

import jax
import pytest

from jaxrl_single.models import api, hf
from jaxrl_single.models import config as config_lib
from jaxrl_single.weights import base, vllm, vllm_worker

SHAPE = config_lib.ModelConfig(8, 1, 4, 2, 1, 2, 4, tie_embeddings=True)


def params_of(seed):
    return jax.device_get(api.build_policy(SHAPE).init(jax.random.key(seed)))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.answer(self.path, json.loads(body or b"null"))

    def do_GET(self):
        self.answer(self.path, None)

    def answer(self, path, message):
        server = self.server
        server.seen.append(path)
        result = {}
        if path == "/collective_rpc":
            server.loaded.append(hf.load(message["args"][0])[1])
            result = {"results": [{"error": server.errors.pop(0) if server.errors else ""}]}
        elif path == "/update_weight_version" and server.deaf:
            self.send_error(500)
            return
        elif path == "/update_weight_version":
            server.label = message["new_version"]
        elif path == "/weight_info":
            result = {"weight_version": server.label}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(result).encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    """Does what vLLM's routes do, as far as they are asked; reads the checkpoints."""
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.seen, found.loaded, found.errors, found.label = [], [], [], "default"
    found.deaf = False
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def client(server, tmp_path):
    url = f"http://127.0.0.1:{server.server_address[1]}"
    return vllm.VllmServer(url, tmp_path, SHAPE, context_length=16)


def test_new_weights_get_their_label_while_nothing_is_sampled(server, client, tmp_path):
    assert client.version() is None
    for version in (3, 4):
        client.load(version, params_of(version))
    once = ["/pause?mode=abort", "/collective_rpc", "/update_weight_version", "/resume"]
    assert server.seen[1:] == once * 2
    assert client.version() == 4
    for version, loaded in zip((3, 4), server.loaded, strict=True):
        assert base.params_sha256(loaded) == base.params_sha256(params_of(version))
    assert [path.name for path in tmp_path.iterdir()] == ["v000000004"]


def test_refused_weights_leave_those_before_and_their_label(server, client, tmp_path):
    client.load(3, params_of(3))
    server.errors = ["half of it is missing"]
    with pytest.raises(base.InvalidWeights, match=r"v000000003: half of it is missing"):
        client.load(4, params_of(4))
    assert client.version() == 3
    assert server.seen.count("/pause?mode=abort") == server.seen.count("/resume") == 2
    assert base.params_sha256(server.loaded[-1]) == base.params_sha256(params_of(3))
    assert [path.name for path in tmp_path.iterdir()] == ["v000000003"]


def test_nothing_is_sampled_under_the_label_of_other_weights(server, client):
    client.load(3, params_of(3))
    server.deaf = True
    with pytest.raises(vllm.ServerLost):
        client.load(4, params_of(4))
    assert server.seen[-2:] == ["/collective_rpc", "/update_weight_version"]
    server.deaf = False
    client.load(4, params_of(4))
    assert (server.seen[-1], client.version()) == ("/resume", 4)


def test_what_a_process_before_had_loaded_is_deleted(server, client, tmp_path):
    client.load(3, params_of(3))
    successor = vllm.VllmServer(client.url, tmp_path, SHAPE, context_length=16)
    model = successor.write_model(params_of(0))
    successor.load(5, params_of(5))
    assert sorted(path.name for path in tmp_path.iterdir()) == [model.name, "v000000005"]


def test_first_model_is_written_once(client):
    place = client.write_model(params_of(0))
    assert client.write_model(params_of(1)) == place
    shape, params = hf.load(place)
    assert shape == SHAPE
    assert base.params_sha256(params) == base.params_sha256(params_of(0))


def test_silent_server_is_named(server, client):
    server.shutdown()
    server.server_close()
    with pytest.raises(vllm.ServerLost, match=f"{client.url}/weight_info: .*refused"):
        client.version()


def test_worker_answers_with_the_problem_instead_of_dying(tmp_path):
    class Worker(vllm_worker.PublishedWeights):
        def reload_weights(self, *, weights_path):
            raise RuntimeError(f"torn: {weights_path}")

    assert "no config.json" in Worker().load_published(str(tmp_path))["error"]
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    assert Worker().load_published(str(tmp_path))["error"] == f"RuntimeError: torn: {tmp_path}"
