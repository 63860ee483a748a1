"""`echo` of /v1/completions: what the model says of the prompt itself, before the answer.

Evaluation harnesses score a text this way: echo = true, max_tokens = 0, logprobs = 1. The sampler
reads such a prompt token by token, as if it had drawn it, so that every token has its log-prob.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from jaxrl_single import wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler.service import admission, openai_answers, openai_api

NOTHING = wire.Completion([], [], [], [], "length")  # where no token was asked for


def requests(call: openai_api.Call) -> list[wire.Request | None]:
    """One for each prompt, which scores its tokens but the first; None where nothing is to score.

    Each has a session of its own, which ends with it.
    """
    once = f"openai/{uuid.uuid4().hex}"
    return [
        wire.Request(
            session=f"{once}/echo/{number}",
            ticket=0,
            attempt=0,
            turn=0,
            tokens=prompt[:1],
            max_new_tokens=len(prompt) - 1,
            stop_token_ids=(),
            temperature=call.settings["temperature"],
            forced_tokens=tuple(prompt[1:]),
            record=call.top_logprobs > 0,
            policy_version=call.settings["policy_version"],
        )
        if call.logprobs and len(prompt) > 1
        else None
        for number, prompt in enumerate(call.prompts)
    ]


async def score(
    engine: engine_lib.Engine, scoring: Sequence[wire.Request | None]
) -> list[wire.Completion]:
    """The answers to `requests`, in order.

    Raises:
      ValueError: the engine refuses a request.
      RuntimeError: the engine failed or was stopped.
    """

    async def one(request: wire.Request | None) -> wire.Completion:
        if request is None:
            return NOTHING
        return await asyncio.wrap_future(admission.submit(engine, request, once=True))

    return await asyncio.gather(*map(one, scoring))


async def choice(
    text: text_lib.Text,
    call: openai_api.Call,
    index: int,
    scored: Sequence[wire.Completion],
    answer: wire.Completion,
) -> dict[str, Any]:
    """One entry of `choices`: text and log-probs of the prompt stand before those of the answer."""
    found = await openai_answers.choice(text, call, index, answer)
    prompt = openai_answers.prompt_of(call, index)
    found["text"] = text.decode(prompt, keep_special=call.keep_special) + found["text"]
    if call.logprobs:
        found["logprobs"] = _logprobs(text, call, prompt, scored[index // call.num_choices], answer)
    return found


def _logprobs(
    text: text_lib.Text,
    call: openai_api.Call,
    prompt: list[int],
    scored: wire.Completion,
    answer: wire.Completion,
) -> dict[str, Any]:
    first = text.decode(prompt[:1], keep_special=True)
    joined = {
        "tokens": [first],
        "token_logprobs": [None],  # nothing precedes it
        "top_logprobs": [None] if call.top_logprobs else None,
        "text_offset": [0],
    }
    offset = len(first)
    for part in (scored, answer):
        found = openai_answers.logprobs(text, call, part, first_offset=offset)
        offset += openai_answers.named_length(text, part.tokens)
        for name, values in found.items():
            if values is not None:
                joined[name] += values
    return joined
