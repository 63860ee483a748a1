"""OpenAI's endpoints: one path from a body to its answer for completions and chat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from jaxrl_single import wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler.service import (
    admission,
    http_errors,
    openai_answers,
    openai_api,
    openai_echo,
    openai_prompts,
    openai_stream,
)

_EVENTS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


class OpenAiRoutes:
    """Handlers of /v1/*, for one model and its text."""

    def __init__(
        self, admitted: admission.Admission, text: text_lib.Text, limits: openai_api.Limits
    ):
        self._admission = admitted
        self._text = text
        self._limits = limits

    def routes(self) -> list[web.RouteDef]:
        """To be added to an application."""
        return [
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._model),
            web.post("/v1/completions", self._completions),
            web.post("/v1/chat/completions", self._chat),
        ]

    async def _models(self, http: web.Request) -> web.Response:
        listed = [_description(name) for name in self._limits.model_names]
        return http_errors.json_response({"object": "list", "data": listed})

    async def _model(self, http: web.Request) -> web.Response:
        name = http.match_info["model"]
        openai_api.check_model(name, self._limits)
        return http_errors.json_response(_description(name))

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, openai_api.completion_call)

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, openai_api.chat_call)

    async def _answer(
        self, http: web.Request, parse: Callable[..., openai_api.Call]
    ) -> web.StreamResponse:
        call = parse(await http_errors.read_json(http), self._text, self._limits)
        lent = await self._admission.engine_for(call.settings["policy_version"])
        engine = lent.engine
        openai_prompts.check(
            call.prompts,
            "messages" if call.chat else "prompt",
            vocab_size=engine.vocab_size,
            cache_length=engine.cache_length,
        )
        head = openai_answers.header(call, self._limits.model_name)
        requests = call.requests()
        sessions = [request.session for request in requests]
        once = call.session_id is None
        with self._admission.in_flight(engine, sessions, once=once):
            if call.stream:
                stream = openai_stream.Stream(self._text, call, head, engine, requests)
                return await _send(http, stream)
            completions = await asyncio.gather(
                *[
                    asyncio.wrap_future(admission.submit(engine, request, once=once))
                    for request in requests
                ]
            )
        if call.echo:
            choices, completions = await self._with_prompts(call, engine, completions)
        else:
            choices = [
                await openai_answers.choice(self._text, call, index, completion)
                for index, completion in enumerate(completions)
            ]
        return http_errors.json_response(openai_answers.body(call, head, choices, completions))

    async def _with_prompts(
        self, call: openai_api.Call, engine: engine_lib.Engine, completions: list[wire.Completion]
    ) -> tuple[list[dict[str, Any]], list[wire.Completion]]:
        """Choices that begin with their prompts, and the completions, empty ones included."""
        scoring = openai_echo.requests(call)
        sessions = [request.session for request in scoring if request is not None]
        with self._admission.in_flight(engine, sessions, once=True):
            scored = await openai_echo.score(engine, scoring)
        completions = completions or [openai_echo.NOTHING] * len(call.prompts) * call.num_choices
        choices = [
            await openai_echo.choice(self._text, call, index, scored, completion)
            for index, completion in enumerate(completions)
        ]
        return choices, completions


def _description(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "jaxrl_single"}


async def _send(http: web.Request, stream: openai_stream.Stream) -> web.StreamResponse:
    response = web.StreamResponse(headers=_EVENTS)
    await response.prepare(http)
    async for event in stream.events():
        await response.write(event)
    await response.write_eof()
    return response
