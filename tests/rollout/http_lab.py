"""Small samplers over real HTTP whose answers a test decides, one request after the other."""

import asyncio
import contextlib
import json

from aiohttp import web

from jaxrl_single import wire


def request(session="7-0", **changes):
    fields = dict(
        session=session,
        ticket=7,
        attempt=0,
        turn=0,
        tokens=[3, 4],
        max_new_tokens=2,
        stop_token_ids=(1,),
    )
    return wire.Request(**{**fields, **changes})


def completion(*tokens, version=0):
    count = len(tokens)
    return wire.Completion(
        list(tokens), [-1 / 3] * count, [0.1] * count, [version] * count, "length"
    )


class Sampler:
    """Answers /generate with what `answers` gives in turn, then with `completion(9)` for ever.

    An answer is a completion, a (status, message, headers[, code]), "hang" (until the client
    leaves) or "drop" (the connection is closed).
    """

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []  # wire.Request of each
        self.headers = []
        self.released = []
        self.left = []  # sessions whose client went away
        self.url = ""
        self._runner = None

    async def start(self, port=0):
        app = web.Application()
        app.add_routes([web.post("/generate", self._generate), web.post("/release", self._release)])
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self):
        await self._runner.cleanup()

    async def _generate(self, http):
        self.headers.append(http.headers)
        asked = wire.request_from_json(json.loads(await http.read()))
        self.requests.append(asked)
        answer = self.answers.pop(0) if self.answers else completion(9)
        if answer == "drop":
            http.transport.abort()
        if answer in ("hang", "drop"):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.left.append(asked.session)
                raise
        if isinstance(answer, wire.Completion):
            return web.json_response(wire.completion_to_json(answer))
        status, message, headers, *code = answer
        body = {"error": {"message": message, "type": "x", "param": None, "code": None}}
        body["error"]["code"] = code[0] if code else None
        return web.json_response(body, status=status, headers=headers)

    async def _release(self, http):
        self.released.append((await http.json())["session"])
        return web.json_response({})


@contextlib.asynccontextmanager
async def serving(*samplers):
    for sampler in samplers:
        await sampler.start()
    try:
        yield [sampler.url for sampler in samplers]
    finally:
        for sampler in samplers:
            await sampler.close()


async def until(condition):
    """Waits for something that another task does."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
