"""Completions in the shapes of OpenAI's endpoints, whole and in the pieces of a stream.

`logprobs` and `top_logprobs` are of the full distribution at the request's temperature (1 when
greedy), so they can be compared with each other. With `return_token_ids` a choice has, besides:

  token_ids             the sampled ids, a stop token at the end included
  rollout_logprobs      log-prob of each under the distribution it was really drawn from
  untruncated_logprobs  log-prob of each under the full distribution
  entropies             nats, of the full distribution
  policy_versions       of the weights that sampled it
  num_forced_tokens     so many ids at the beginning were not sampled: tool_choice forced them. What
                        the other arrays say of them is what they would say had they been drawn

A log-prob is null for a forced token that could not have been drawn. `prompt_token_ids` stands in
each choice of a completion, and at the top of a chat answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from jaxrl_single import wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.sampler.service import openai_api, openai_tools


def header(call: openai_api.Call, model_name: str) -> dict[str, Any]:
    """What all pieces of an answer share."""
    kind = "chat.completion" if call.chat else "text_completion"
    return {
        "id": f"{'chatcmpl' if call.chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": f"{kind}.chunk" if call.chat and call.stream else kind,
        "created": int(time.time()),
        "model": model_name,
    }


def body(
    call: openai_api.Call,
    head: dict[str, Any],
    choices: Sequence[dict[str, Any]],
    completions: Sequence[wire.Completion],
) -> dict[str, Any]:
    """The whole answer, for a client that does not stream; choices: of the completions."""
    answer = head | {"choices": choices, "usage": usage(call, completions)}
    if call.chat and call.return_token_ids:
        answer["prompt_token_ids"] = call.prompts[0]
    return answer


def usage(call: openai_api.Call, completions: Sequence[wire.Completion]) -> dict[str, Any]:
    """Counts of tokens; a prompt counts once, whatever the number of its answers."""
    prompt = sum(len(tokens) for tokens in call.prompts)
    sampled = sum(len(completion.tokens) for completion in completions)
    first = completions[:: call.num_choices]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {
            "cached_tokens": sum(completion.num_cached_tokens for completion in first)
        },
    }


def visible_ids(call: openai_api.Call, completion: wire.Completion) -> list[int]:
    """The ids that the text shows: all but a stop token at the end."""
    tokens = completion.tokens
    stopped = completion.finish_reason == "stop" and bool(tokens)
    if stopped and tokens[-1] in call.settings["stop_token_ids"]:
        return tokens[:-1]
    return tokens


def full_text(text: text_lib.Text, call: openai_api.Call, completion: wire.Completion) -> str:
    """The text of an answer, up to its stop string."""
    found = text.decode(visible_ids(call, completion), keep_special=call.keep_special)
    reason = completion.stop_reason
    return found.partition(reason)[0] if isinstance(reason, str) and reason else found


async def choice(
    text: text_lib.Text, call: openai_api.Call, index: int, completion: wire.Completion
) -> dict[str, Any]:
    """One entry of `choices` of a body."""
    found = await openai_tools.read(
        call.tools, full_text(text, call, completion), completion.finish_reason
    )
    said = {"message": openai_tools.message(found)} if call.chat else {"text": found.text}
    said["logprobs"] = logprobs(text, call, completion) if call.logprobs else None
    extras = {}
    if call.return_token_ids:
        extras = {"token_ids": completion.tokens, "num_forced_tokens": len(call.forced)}
        extras |= training_fields(completion)
        if not call.chat:
            extras["prompt_token_ids"] = prompt_of(call, index)
    return {"index": index} | said | ending(completion) | openai_tools.finish(found) | extras


def prompt_of(call: openai_api.Call, index: int) -> list[int]:
    """Token ids of the prompt that choice `index` answers."""
    return call.prompts[index // call.num_choices]


def ending(completion: wire.Completion) -> dict[str, Any]:
    """The fields of a choice that are known at its end only."""
    return {"finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason}


def training_fields(completion: wire.Completion) -> dict[str, Any]:
    """What `return_token_ids` adds besides the ids."""
    return {
        "rollout_logprobs": _finite(completion.logprobs),
        "untruncated_logprobs": _finite(_of_full(completion)),
        "entropies": completion.entropies,
        "policy_versions": completion.policy_versions,
    }


def logprobs(
    text: text_lib.Text,
    call: openai_api.Call,
    completion: wire.Completion,
    *,
    first_offset: int = 0,
) -> dict[str, Any]:
    """The object `logprobs` of a choice; in a completion, `text_offset` begins at first_offset."""
    names = [_name(text, token) for token in completion.tokens]
    tops = [_likeliest(text, call, completion, place) for place in range(len(completion.tokens))]
    if call.chat:
        entries = zip(names, _of_full(completion), tops, strict=True)
        content = [
            _entry(name, value) | {"top_logprobs": [_entry(*pair) for pair in top]}
            for name, value, top in entries
        ]
        return {"content": content, "refusal": None}
    offsets = [first_offset]
    for name in names[:-1]:
        offsets.append(offsets[-1] + len(name))
    with_own = [
        dict(top) | {name: value}
        for name, value, top in zip(names, _of_full(completion), tops, strict=True)
    ]
    return {
        "tokens": names,
        "token_logprobs": _of_full(completion),
        "top_logprobs": with_own if call.top_logprobs else None,
        "text_offset": offsets[: len(names)],
    }


def named_length(text: text_lib.Text, tokens: Sequence[int]) -> int:
    """Characters of the tokens as `logprobs` writes them, each by itself."""
    return sum(len(_name(text, token)) for token in tokens)


def _of_full(completion: wire.Completion) -> list[float]:
    if completion.untruncated_logprobs is None:
        return completion.logprobs
    return completion.untruncated_logprobs


def _finite(logprobs: Sequence[float]) -> list[float | None]:
    """JSON has no infinity."""
    return [value if value > float("-inf") else None for value in logprobs]


def _likeliest(
    text: text_lib.Text, call: openai_api.Call, completion: wire.Completion, place: int
) -> list[tuple[str, float]]:
    """Without impossible tokens: JSON has no infinity."""
    if not call.top_logprobs or completion.topk_tokens is None:
        return []
    pairs = zip(completion.topk_tokens[place], completion.topk_logprobs[place], strict=True)
    likeliest = list(pairs)[: call.top_logprobs]
    return [(_name(text, token), value) for token, value in likeliest if value > float("-inf")]


def _name(text: text_lib.Text, token: int) -> str:
    return text.decode([token], keep_special=True)


def _entry(name: str, logprob: float) -> dict[str, Any]:
    return {"token": name, "logprob": logprob, "bytes": list(name.encode())}
