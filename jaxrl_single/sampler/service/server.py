"""The sampler as an HTTP service: OpenAI's endpoints for harnesses, wire messages for rollouts.

    POST /v1/completions  /v1/chat/completions   GET /v1/models     see openai_api.py
    POST /generate   a wire.Request -> a wire.Completion, exact     POST /release  {"session"}
    GET  /health  /version  /stats
    POST /load_weights  {"version": number, or null = the newest}   POST /pause  /resume

It runs on the caller's event loop; the engine has its own thread. A client that goes away frees its
slots. Errors have OpenAI's shape and the status 400 (wrong request), 401 (no or wrong token), 404,
405, 409 (the session is busy), 413 (body too large), 429 (too many wait), 503 (no weights yet, or
the engine failed); 409, 429 and a 503 that may pass come with Retry-After.
"""

from __future__ import annotations

import asyncio
import hmac

from aiohttp import web

from jaxrl_single import wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import tool_formats
from jaxrl_single.sampler.service import access, admission, http_errors, openai_api, openai_routes
from jaxrl_single.weights import base as weights_base

_SWEEP_S = 1.0  # between looks for sessions that are idle while requests wait
_SHUTDOWN_S = 1.0  # for answers that are on their way when the service closes
_BACKLOG = 1024  # connections that wait to be accepted


class Server:
    """Serves one router over HTTP.

    Attributes:
      port: that it listens on, once started.
    """

    def __init__(
        self,
        router: admission.Router,
        text: text_lib.Text,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        max_body_bytes: int = 2**24,
        max_waiting: int = 1024,
        max_tokens_limit: int = 2**16,
        model_name: str = "policy",
        max_top_logprobs: int = 0,
        topk: int = 0,
        idle_s: float = 60.0,
        tool_format: str = "",
    ):
        """Nothing listens before `start`.

        Args:
          text: of the model that is served.
          host: to listen on; another than loopback needs a token.
          port: 0 = any free one.
          token: what clients must show as "Authorization: Bearer ..."; None = nothing.
          max_body_bytes: of a request.
          max_waiting: requests that may wait for a slot; more are answered with 429.
          max_tokens_limit: most new tokens that one request may ask for.
          model_name: what clients call the model, besides "policy".
          max_top_logprobs: likeliest tokens that OpenAI's endpoints tell; engines record as many.
          topk: of those, how many an answer of /generate has.
          tool_format: how the model calls tools, of envs/tool_formats.py; empty = as its chat
            template shows it, or not at all.
          idle_s: a session idle for so many seconds loses its slot to a request that waits for one.

        Raises:
          ValueError: a host that others reach, and no token; an empty token; a limit below 1; no
            such tool_format.
        """
        access.check(host, token)
        _check_limits(
            max_body_bytes=max_body_bytes,
            max_waiting=max_waiting,
            max_tokens_limit=max_tokens_limit,
        )
        self.port = port
        self._router = router
        self._host = host
        self._token = token
        self._max_tokens_limit = max_tokens_limit
        self._idle_s = idle_s
        self._topk = topk
        self._admission = admission.Admission(router, max_waiting=max_waiting)
        self._app = web.Application(
            client_max_size=max_body_bytes, middlewares=[http_errors.as_json, self._authorise]
        )
        self._app.add_routes(self._routes())
        style = tool_format or text.tool_format
        allowed = openai_api.Limits(
            model_name,
            max_tokens_limit,
            max_top_logprobs,
            tool_formats.get(style) if style else None,
        )
        openai = openai_routes.OpenAiRoutes(self._admission, text, allowed)
        self._app.add_routes(openai.routes())
        self._runner: web.AppRunner | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens; OSError if the port is taken."""
        self._runner = web.AppRunner(
            self._app,
            handler_cancellation=True,  # a client that goes away ends its handler
            access_log=None,
            shutdown_timeout=_SHUTDOWN_S,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self.port, backlog=_BACKLOG).start()
        self.port = self._runner.addresses[0][1]
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stops listening and ends what is in flight; the engines go on."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._idle_s))
            self._admission.make_room(self._idle_s)

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.post("/generate", self._generate),
            web.post("/release", self._release),
            web.get("/health", self._health),
            web.get("/version", self._version),
            web.get("/stats", self._stats),
            web.post("/load_weights", self._load_weights),
            web.post("/pause", self._pause),
            web.post("/resume", self._resume),
        ]

    @web.middleware
    async def _authorise(self, request: web.Request, handler) -> web.StreamResponse:
        # Whoever watches that the service is up need not know the secret.
        if self._token is not None and request.path != "/health":
            shown = request.headers.get("Authorization", "")
            if not hmac.compare_digest(
                shown.encode(errors="surrogateescape"), f"Bearer {self._token}".encode()
            ):
                raise http_errors.ApiError(
                    401,
                    "this sampler needs its token as 'Authorization: Bearer ...'",
                    code="invalid_api_key",
                )
        return await handler(request)

    async def _generate(self, http: web.Request) -> web.Response:
        request = wire.request_from_json(await http_errors.read_json(http))
        if request.max_new_tokens > self._max_tokens_limit:
            raise http_errors.wrong(
                f"max_new_tokens is {request.max_new_tokens}, at most {self._max_tokens_limit}",
                "max_new_tokens",
            )
        lent = await self._admission.engine_for(request.policy_version)
        engine = lent.engine
        with self._admission.in_flight(engine, [request.session], once=False):
            completion = await asyncio.wrap_future(engine.submit(request))
        completion = wire.with_topk(completion, self._topk)
        return http_errors.json_response(wire.completion_to_json(completion))

    async def _release(self, http: web.Request) -> web.Response:
        body = await http_errors.read_json(http)
        session = body.get("session")
        if not isinstance(session, str):
            raise http_errors.wrong("session must be a string", "session")
        self._admission.release(session)
        return http_errors.json_response({"released": session})

    async def _health(self, http: web.Request) -> web.Response:
        engine = self._router.following
        if engine.error is not None:
            answer = {"status": "failed", "version": engine.version, "error": repr(engine.error)}
        elif engine.version < 0:
            answer = {"status": "waiting for weights", "version": engine.version}
        else:
            answer = {"status": "ok", "version": engine.version}
        return http_errors.json_response(answer, status=200 if answer["status"] == "ok" else 503)

    async def _version(self, http: web.Request) -> web.Response:
        return http_errors.json_response({"version": self._router.following.version})

    async def _stats(self, http: web.Request) -> web.Response:
        return http_errors.json_response(
            self._router.stats() | {"requests_in_flight": self._admission.num_in_flight}
        )

    async def _load_weights(self, http: web.Request) -> web.Response:
        version = (await http_errors.read_json(http)).get("version")
        if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
            raise http_errors.wrong(f"version is {version!r}, expected a number", "version")
        try:
            loaded = await asyncio.to_thread(self._router.load, version)
        except (weights_base.InvalidWeights, ValueError) as error:
            raise http_errors.wrong(str(error), "version", "invalid_weights") from None
        return http_errors.json_response({"version": loaded})

    async def _pause(self, http: web.Request) -> web.Response:
        self._router.following.pause()
        return http_errors.json_response({"paused": True})

    async def _resume(self, http: web.Request) -> web.Response:
        self._router.following.resume()
        return http_errors.json_response({"paused": False})


def _check_limits(**limits: int) -> None:
    for name, limit in limits.items():
        if limit < 1:
            raise ValueError(f"sampler server: {name} is {limit}, it must be positive")
