"""A service of a real engine on a thread of its own, and plain HTTP to talk to it."""

import asyncio
import contextlib
import http.client
import json
import threading
import time

import sampler_lab as lab

from jaxrl_single import types
from jaxrl_single.envs import chat, chat_text
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler.service import server as server_lib
from jaxrl_single.stages import engines as engines_lib
from jaxrl_single.weights import base as weights_base

SIZE = "tiny_moe"
TOPK = 3
TEXT = chat_text.CharText(chat.CharChat.build("0123456789+-*()eo"))  # lab.VOCAB_SIZE ids
SHAPE = lab.SHAPE | {
    "num_slots": 32,
    "cache_length": 128,
    "cache_sizes": (),
    "prefill_pages": (2,),
    "record": types.Record(topk=TOPK),
    "text_of": TEXT.decode,
}
assert TEXT.vocab_size == lab.VOCAB_SIZE


class Router:
    """Engines over a store of weights, by the methods that the service needs."""

    def __init__(self, following, weights=None):
        self.following = following
        self.weights = weights

    def engine_for(self, version):
        if version in (None, self.following.version):
            return engines_lib.Lent(self.following)
        raise weights_base.MissingVersion(f"version {version} was never published")

    def load(self, version):
        version = self.weights.latest() if version is None else version
        params, _ = self.weights.fetch(version)
        self.following.load_weights(version, params)
        return version

    def stats(self):
        return self.following.stats()


def make_engine(**changes) -> engine_lib.Engine:
    return engine_lib.Engine(
        lab.policy_of(SIZE), lab.params_of(SIZE, 0), changes.pop("version", 0), **(SHAPE | changes)
    )


class Service:
    """The service and its address."""

    def __init__(self, server: server_lib.Server, router: Router, text):
        self.router = router
        self.text = text
        self.engine = router.following
        self.port = server.port
        self.url = f"http://127.0.0.1:{server.port}"

    def request(self, method, path, body=None, headers=None):
        """(status, JSON body, headers) of one request; a body of bytes is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers

    def post(self, path, body=None, **headers):
        return self.request("POST", path, body, headers)[:2]

    def get(self, path):
        return self.request("GET", path)[:2]

    def open(self, path, body) -> http.client.HTTPConnection:
        """A connection with a request on its way, to be closed by the caller."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, body=json.dumps(body).encode())
        return connection

    def wait_for(self, condition, step=False):
        """Until the condition holds; `step` moves an engine that has no thread of its own."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true within 60 s"
            if step:
                self.engine.step()
            time.sleep(0.002)

    def num_in_flight(self):
        return self.get("/stats")[1]["requests_in_flight"]


@contextlib.contextmanager
def serving(engine, weights=None, *, text=TEXT, **options):
    """Serves the engine (started or not) over HTTP; stops both at the end."""
    router = Router(engine, weights)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    server = server_lib.Server(router, text, **({"max_top_logprobs": TOPK, "topk": TOPK} | options))
    try:
        run(server.start())
        yield Service(server, router, text)
    finally:
        run(server.close())
        engine.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
