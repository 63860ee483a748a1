"""What a rollout asks of a sampler, and the answer. Plain dataclasses and JSON, no jax.

Token ids go in and token ids come out: text never crosses this border, so what the policy sampled
is never tokenised a second time.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

FINISH_REASONS = ("stop", "length", "cancelled")


class InvalidMessage(ValueError):
    """A message of the wire is not what its type promises; the message names the field."""


@dataclasses.dataclass(frozen=True)
class Request:
    """Asks for one turn of an episode.

    Attributes:
      session: name of the episode; the sampler keeps the session's cache between its turns.
      ticket, attempt, turn: with the token's index in the turn they name the randomness, so that
        the same request draws the same tokens whatever else is being sampled.
      tokens: the whole episode so far, at least one token; the answer continues it.
      max_new_tokens: most tokens to sample, >= 1; the sampler's context may cut it further.
      stop_token_ids: sampling ends after one of these; it is part of the answer.
      temperature: of the sampled distribution, > 0.
    """

    session: str
    ticket: int
    attempt: int
    turn: int
    tokens: list[int]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    temperature: float = 1.0


@dataclasses.dataclass(frozen=True)
class Completion:
    """The sampled tokens of one turn; the lists are equally long.

    Attributes:
      tokens: sampled ids; a stop token at the end is included.
      logprobs: natural log of each token's probability under the sampled distribution
        (temperature included).
      entropies: nats, of that distribution over the full vocabulary.
      policy_versions: version of the weights that sampled the token.
      finish_reason: "stop" (a stop token), "length" (budget or context) or "cancelled"
        (the session was released while it ran; what was sampled until then).
      aux_tokens, aux_logprobs: M further draws at the place of each token, if the sampler records
        them, else None.
      topk_tokens, topk_logprobs: the K likeliest tokens there, or None.
      full_logprobs: of the whole vocabulary there, or None; -inf for an impossible token.
    """

    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    policy_versions: list[int]
    finish_reason: str
    aux_tokens: list[list[int]] | None = None
    aux_logprobs: list[list[float]] | None = None
    topk_tokens: list[list[int]] | None = None
    topk_logprobs: list[list[float]] | None = None
    full_logprobs: list[list[float]] | None = None


_REQUEST_FIELDS = {
    "session": "str",
    "ticket": "int",
    "attempt": "int",
    "turn": "int",
    "tokens": "list[int]",
    "max_new_tokens": "int",
    "stop_token_ids": "list[int]",
    "temperature": "float",
}
_COMPLETION_FIELDS = {
    "tokens": "list[int]",
    "logprobs": "list[float]",
    "entropies": "list[float]",
    "policy_versions": "list[int]",
    "finish_reason": "str",
}
RECORDED_FIELDS = {  # of a completion, absent from its message when the sampler records none
    "aux_tokens": "list[list[int]]",
    "aux_logprobs": "list[list[logprob]]",
    "topk_tokens": "list[list[int]]",
    "topk_logprobs": "list[list[logprob]]",
    "full_logprobs": "list[list[logprob]]",
}


def request_to_json(request: Request) -> dict[str, Any]:
    """The request as JSON types."""
    message = dataclasses.asdict(request)
    message["tokens"] = [int(token) for token in request.tokens]
    message["stop_token_ids"] = [int(token) for token in request.stop_token_ids]
    return message


def request_from_json(message: Any) -> Request:
    """Reads what `request_to_json` wrote.

    Raises:
      InvalidMessage: a field is missing, unknown, or of another type.
    """
    fields = _checked(message, _REQUEST_FIELDS, "request")
    fields["stop_token_ids"] = tuple(fields["stop_token_ids"])
    return Request(**fields)


def completion_to_json(completion: Completion) -> dict[str, Any]:
    """The completion as JSON types; float32 values survive the way there and back exactly.

    JSON has no infinity: the log-prob of an impossible token is null.
    """
    message = dataclasses.asdict(completion)
    for name, kind in RECORDED_FIELDS.items():
        if message[name] is None:
            del message[name]
        elif kind == "list[list[logprob]]":
            message[name] = [
                [None if value == -math.inf else value for value in row] for row in message[name]
            ]
    return message


def completion_from_json(message: Any) -> Completion:
    """Reads what `completion_to_json` wrote.

    Raises:
      InvalidMessage: a field is missing, unknown, or of another type; the lists differ in length;
        the finish reason is unknown.
    """
    fields = _checked(message, _COMPLETION_FIELDS, "completion", optional=RECORDED_FIELDS)
    for name, kind in RECORDED_FIELDS.items():
        if name in fields and kind == "list[list[logprob]]":
            fields[name] = [
                [-math.inf if value is None else value for value in row] for row in fields[name]
            ]
    completion = Completion(**fields)
    length = len(completion.tokens)
    for name in ("logprobs", "entropies", "policy_versions", *RECORDED_FIELDS):
        entries = getattr(completion, name)
        if entries is not None and len(entries) != length:
            raise InvalidMessage(
                f"completion: {name} has {len(entries)} entries "
                f"for {length} tokens; there must be one for each token"
            )
    if completion.finish_reason not in FINISH_REASONS:
        raise InvalidMessage(
            f"completion: finish_reason is {completion.finish_reason!r}, "
            f"allowed are {FINISH_REASONS}"
        )
    return completion


def _checked(
    message: Any, expected: dict[str, str], what: str, *, optional: dict[str, str] | None = None
) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidMessage(f"{what}: is a {type(message).__name__}, expected a JSON object")
    kinds = (optional or {}) | expected
    missing, unknown = sorted(set(expected) - set(message)), sorted(set(message) - set(kinds))
    if missing or unknown:
        raise InvalidMessage(f"{what}: missing fields {missing}, unknown fields {unknown}")
    for name, value in message.items():
        if not _is_a(value, kinds[name]):
            raise InvalidMessage(f"{what}: {name} is {value!r:.80}, expected {kinds[name]}")
    return dict(message)


def _is_a(value: Any, kind: str) -> bool:
    """bool is an int to Python, but not to the wire."""
    if kind == "str":
        return isinstance(value, str)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "logprob":
        return value is None or _is_a(value, "float")
    return isinstance(value, list) and all(_is_a(item, kind[5:-1]) for item in value)
