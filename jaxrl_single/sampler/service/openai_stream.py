"""Answers of OpenAI's endpoints as server-sent events, while the engine samples them.

A chunk has the log-probs and (with `return_token_ids`) the ids and the other arrays of the tokens
that have come since the one before. Its text may lag behind them: it waits for whole characters,
and for the end of what may become a stop string or a call of a tool. The last chunk has the
calls and the finish reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from concurrent import futures
from typing import Any

from jaxrl_single import wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler.service import (
    admission,
    http_errors,
    openai_answers,
    openai_api,
    openai_tools,
    text_stream,
)

DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + http_errors.json_text(body).encode() + b"\n\n"


class Stream:
    """The answers to one call, from submission on. Make and use it on the event loop.

    Raises:
      ValueError: the engine refuses a request.
      RuntimeError: the engine failed or was stopped.
    """

    def __init__(
        self,
        text: text_lib.Text,
        call: openai_api.Call,
        head: dict[str, Any],
        engine: engine_lib.Engine,
        requests: Sequence[wire.Request],
    ):
        self._call = call
        self._head = head
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, wire.Completion | futures.Future]] = asyncio.Queue()
        self._choices = [
            _Choice(text, call, index, request) for index, request in enumerate(requests)
        ]
        for index, request in enumerate(requests):
            self._submit(engine, index, request)

    async def events(self) -> AsyncIterator[bytes]:
        """All events, as they come, the end mark included; a failure is an event, too."""
        for choice in self._choices:
            yield self._event(choice.begin())
        completions: dict[int, wire.Completion] = {}
        while len(completions) < len(self._choices):
            index, found = await self._events.get()
            if isinstance(found, wire.Completion):
                chunk = self._choices[index].more(found)
            elif found.cancelled() or found.exception() is not None:
                error = found.exception() if not found.cancelled() else RuntimeError("cancelled")
                yield event(http_errors.from_exception(error).body())
                return
            else:
                completions[index] = found.result()
                chunk = await self._choices[index].end(found.result())
            if chunk is not None:
                yield self._event(chunk)
        if self._call.include_usage:
            ordered = [completions[index] for index in sorted(completions)]
            counts = openai_answers.usage(self._call, ordered)
            yield event(self._head | {"choices": [], "usage": counts})
        yield DONE

    def _event(self, choice: dict[str, Any]) -> bytes:
        return event(self._head | {"choices": [choice]})

    def _submit(self, engine: engine_lib.Engine, index: int, request: wire.Request) -> None:
        once = self._call.session_id is None
        future = admission.submit(
            engine, request, once=once, on_tokens=lambda part: self._post(index, part)
        )
        future.add_done_callback(lambda done: self._post(index, done))

    def _post(self, index: int, found: wire.Completion | futures.Future) -> None:
        """From the engine's thread, which must not fail because the service has closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, (index, found))


class _Choice:
    """One answer on its way."""

    def __init__(
        self, text: text_lib.Text, call: openai_api.Call, index: int, request: wire.Request
    ):
        self._text = text
        self._call = call
        self._index = index
        self._hidden = frozenset(request.stop_token_ids)
        self._num_named = 0  # characters of the tokens so far, each by itself
        openings = call.tools.tool_format.openings if call.tools else ()
        self._stream = text_stream.AnswerStream(
            text, keep_special=call.keep_special, hold=(*request.stop, *openings)
        )

    def begin(self) -> dict[str, Any]:
        """The chunk before the first token."""
        extras = {}
        if self._call.return_token_ids:
            extras["prompt_token_ids"] = openai_answers.prompt_of(self._call, self._index)
            extras["num_forced_tokens"] = len(self._call.forced)
        return self._chunk("", first=True) | extras

    def more(self, part: wire.Completion) -> dict[str, Any] | None:
        """The chunk of new tokens; None if it would say nothing."""
        piece = self._stream.add([token for token in part.tokens if token not in self._hidden])
        found = {}
        if self._call.logprobs:
            found["logprobs"] = openai_answers.logprobs(
                self._text, self._call, part, first_offset=self._num_named
            )
            self._num_named += openai_answers.named_length(self._text, part.tokens)
        if self._call.return_token_ids:
            found |= {"token_ids": part.tokens} | openai_answers.training_fields(part)
        return self._chunk(piece) | found if piece or found else None

    async def end(self, completion: wire.Completion) -> dict[str, Any]:
        """The last chunk, of no token: `more` has had them all."""
        whole = openai_answers.full_text(self._text, self._call, completion)
        found = await openai_tools.read(self._call.tools, whole, completion.finish_reason)
        last = self._chunk(self._stream.finish(found.text), calls=openai_tools.delta(found))
        return last | openai_answers.ending(completion) | openai_tools.finish(found)

    def _chunk(
        self, piece: str, *, first: bool = False, calls: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if self._call.chat:
            role = {"role": "assistant"} if first else {}
            said = {"delta": role | ({"content": piece} if piece or first else {}) | (calls or {})}
        else:
            said = {"text": piece}
        return {"index": self._index} | said | {"logprobs": None, "finish_reason": None}
