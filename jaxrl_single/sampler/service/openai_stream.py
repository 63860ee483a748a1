"""Answers of OpenAI's endpoints as server-sent events, while the engine samples them.

A choice streams its text and (with `return_token_ids`) its ids; log-probs and the other arrays come
for all of its tokens with the last chunk, which has the finish reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from concurrent import futures
from typing import Any

from jaxrl_single import wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler.service import http_errors, openai_answers, openai_api, text_stream

DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


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
        self._events: asyncio.Queue[tuple[int, list[int] | futures.Future]] = asyncio.Queue()
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
            if isinstance(found, list):
                chunk = self._choices[index].more(found)
            elif found.cancelled() or found.exception() is not None:
                error = found.exception() if not found.cancelled() else RuntimeError("cancelled")
                yield event(http_errors.from_exception(error).body())
                return
            else:
                completions[index] = found.result()
                chunk = self._choices[index].end(found.result())
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
        def on_tokens(tokens: list[int], _logprobs: list[float]) -> None:
            self._post(index, list(tokens))

        future = engine.submit(request, on_tokens=on_tokens)
        future.add_done_callback(lambda done: self._post(index, done))

    def _post(self, index: int, found: list[int] | futures.Future) -> None:
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
        self._num_ids = 0
        self._stream = text_stream.AnswerStream(
            text, keep_special=call.keep_special, stop=request.stop
        )

    def begin(self) -> dict[str, Any]:
        """The chunk before the first token."""
        extras = {}
        if self._call.return_token_ids:
            extras["prompt_token_ids"] = openai_answers.prompt_of(self._call, self._index)
        return self._chunk("", [], first=True) | extras

    def more(self, ids: list[int]) -> dict[str, Any] | None:
        """The chunk of new tokens; None if it would say nothing."""
        self._num_ids += len(ids)
        piece = self._stream.add([token for token in ids if token not in self._hidden])
        if not piece and not self._call.return_token_ids:
            return None
        return self._chunk(piece, ids)

    def end(self, completion: wire.Completion) -> dict[str, Any]:
        """The last chunk."""
        whole = openai_answers.full_text(self._text, self._call, completion)
        chunk = self._chunk(self._stream.finish(whole), completion.tokens[self._num_ids :])
        if self._call.return_token_ids:
            chunk |= openai_answers.training_fields(completion)
        return chunk | openai_answers.ending(self._text, self._call, completion)

    def _chunk(self, piece: str, ids: list[int], *, first: bool = False) -> dict[str, Any]:
        if self._call.chat:
            role = {"role": "assistant"} if first else {}
            said = {"delta": role | ({"content": piece} if piece or first else {})}
        else:
            said = {"text": piece}
        found = {"index": self._index} | said | {"logprobs": None, "finish_reason": None}
        return found | ({"token_ids": ids} if self._call.return_token_ids else {})
