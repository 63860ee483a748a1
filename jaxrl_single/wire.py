"""What a rollout asks of a sampler, and the answer. Plain dataclasses and JSON, no jax.

Token ids go in and token ids come out: text never crosses this border, so what the policy sampled
is never tokenised a second time.

A message is a JSON object with the names of the dataclass. A field at its default is left out, so
short requests have short messages; a field that is there must have its type and is never null.
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

    The distribution that a token is drawn from: biases are added to the logits, and all but the
    allowed tokens forbidden; the result is divided by the temperature; the top_k likeliest stay; of
    these the likeliest stay until they hold top_p of the mass; of these the ones at least min_p
    times as likely as the likeliest stay. Tokens as likely as the last that stays, stay too.

    Attributes:
      session: name of the episode; the sampler keeps the session's cache between its turns.
      ticket, attempt, turn: with the token's index in the turn they name the randomness, so that
        the same request draws the same tokens whatever else is being sampled.
      tokens: the whole episode so far, at least one token; the answer continues it.
      max_new_tokens: most tokens to sample, >= 1; the sampler's context may cut it further.
      stop_token_ids: sampling ends after one of these; it is part of the answer.
      temperature: of the sampled distribution; 0 = always the likeliest token.
      seed: of the draws, 0 .. 2^32 - 1; None = the sampler's own.
      top_k: 0 = off.
      top_p: in (0, 1], 1 = off.
      min_p: in [0, 1], 0 = off.
      logit_bias: (token, value) pairs, added to the logits before the temperature divides them.
      allowed_token_ids: the only tokens that may be drawn; empty = all.
      stop: sampling ends when the text of the new tokens contains one of these strings. The tokens
        after the one that completes the string are not part of the answer.
      forced_tokens: taken instead of draws, at most max_new_tokens in number: what the answer says
        of them is what it would say had they been drawn. What follows them is drawn.
      record: whether the answer shall hold what the sampler records besides the tokens.
      policy_version: None = whatever the sampler serves; a number = exactly that version.
    """

    session: str
    ticket: int
    attempt: int
    turn: int
    tokens: list[int]
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    temperature: float = 1.0
    seed: int | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    forced_tokens: tuple[int, ...] = ()
    record: bool = True
    policy_version: int | None = None


@dataclasses.dataclass(frozen=True)
class Completion:
    """The sampled tokens of one turn; lists with an entry for each token are equally long.

    Attributes:
      tokens: sampled ids; a stop token at the end is included.
      logprobs: natural log of each token's probability under the distribution that it was really
        drawn from; 0 when greedy; -inf for a forced token that could not have been drawn.
      entropies: nats, of the full distribution (all tokens at the temperature; at 1 when greedy).
      policy_versions: version of the weights that sampled the token.
      finish_reason: "stop" (a stop token or string), "length" (budget or context) or "cancelled"
        (the session was released while it ran; what was sampled until then).
      aux_tokens, aux_logprobs: M further draws at the place of each token from the full
        distribution, if the sampler records them, else None.
      topk_tokens, topk_logprobs: the K likeliest tokens there, or None.
      full_logprobs: of the whole vocabulary there, or None; -inf for an impossible token.
      untruncated_logprobs: of each token under the full distribution: what a trainer computes.
        None from a sampler that does not say.
      stop_reason: the stop token's id or the stop string that ended the turn, else None.
      num_cached_tokens: of the request's tokens, so many were not computed for this answer.
      expert_ids: [n][L][k], the experts that the router chose in each layer for n tokens of the
        episode, in order; the last known token is often not read. None if not recorded.
      expert_start: index in the episode of the first of these.
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
    untruncated_logprobs: list[float] | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    expert_ids: list[list[list[int]]] | None = None
    expert_start: int = 0


RECORDED_FIELDS = {  # of a completion, absent from its message when the sampler records none
    "aux_tokens": "list[list[int]]",
    "aux_logprobs": "list[list[logprob]]",
    "topk_tokens": "list[list[int]]",
    "topk_logprobs": "list[list[logprob]]",
    "full_logprobs": "list[list[logprob]]",
}
_REQUEST_FIELDS = {
    "session": "str",
    "ticket": "int",
    "attempt": "int",
    "turn": "int",
    "tokens": "list[int]",
    "max_new_tokens": "int",
    "stop_token_ids": "list[int]",
    "temperature": "float",
    "seed": "int",
    "top_k": "int",
    "top_p": "float",
    "min_p": "float",
    "logit_bias": "list[[int, float]]",
    "allowed_token_ids": "list[int]",
    "stop": "list[str]",
    "forced_tokens": "list[int]",
    "record": "bool",
    "policy_version": "int",
}
_COMPLETION_FIELDS = {
    "tokens": "list[int]",
    "logprobs": "list[logprob]",
    "entropies": "list[float]",
    "policy_versions": "list[int]",
    "finish_reason": "str",
    **RECORDED_FIELDS,
    "untruncated_logprobs": "list[logprob]",
    "stop_reason": "int or str",
    "num_cached_tokens": "int",
    "expert_ids": "list[list[list[int]]]",
    "expert_start": "int",
}
_PER_TOKEN = ("logprobs", "entropies", "policy_versions", *RECORDED_FIELDS, "untruncated_logprobs")
# JSON gives exactly these classes. bool is an int to Python's isinstance, but not to the wire.
_CLASSES = {
    "str": {str},
    "bool": {bool},
    "int": {int},
    "float": {int, float},
    "logprob": {int, float, type(None)},  # JSON has no infinity: an impossible token has null
    "int or str": {int, str},
}


def with_topk(completion: Completion, k: int) -> Completion:
    """With the first k of the likeliest tokens that it has."""
    if completion.topk_tokens is None:
        return completion
    rows = {name: getattr(completion, name) for name in ("topk_tokens", "topk_logprobs")}
    return dataclasses.replace(
        completion, **{name: [row[:k] for row in rows[name]] if k else None for name in rows}
    )


def request_to_json(request: Request) -> dict[str, Any]:
    """The request as JSON types; numpy's ints become ints."""
    message = _without_defaults(request)
    for name, value in message.items():
        if _REQUEST_FIELDS[name] == "list[int]":
            message[name] = [int(token) for token in value]
    if "logit_bias" in message:
        message["logit_bias"] = [[int(token), float(value)] for token, value in request.logit_bias]
    return message


def request_from_json(message: Any) -> Request:
    """Reads what `request_to_json` wrote.

    Raises:
      InvalidMessage: a field is missing, unknown, or of another type.
    """
    fields = _checked(message, Request, _REQUEST_FIELDS)
    for name, value in fields.items():
        if isinstance(value, list) and name != "tokens":
            fields[name] = tuple(value)
    if "logit_bias" in fields:
        fields["logit_bias"] = tuple((token, value) for token, value in fields["logit_bias"])
    return Request(**fields)


def completion_to_json(completion: Completion) -> dict[str, Any]:
    """The completion as JSON types; float32 values survive the way there and back exactly.

    JSON has no infinity: the log-prob of an impossible token is null.
    """
    message = _without_defaults(completion)
    for name in _logprob_fields(message):
        message[name] = _replace(message[name], -math.inf, None)
    return message


def completion_from_json(message: Any) -> Completion:
    """Reads what `completion_to_json` wrote.

    Raises:
      InvalidMessage: a field is missing, unknown, or of another type; the lists differ in length;
        the finish reason is unknown.
    """
    fields = _checked(message, Completion, _COMPLETION_FIELDS)
    for name in _logprob_fields(fields):
        fields[name] = _replace(fields[name], None, -math.inf)
    completion = Completion(**fields)
    length = len(completion.tokens)
    for name in _PER_TOKEN:
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


def _without_defaults(given: Request | Completion) -> dict[str, Any]:
    values = {field: getattr(given, field.name) for field in dataclasses.fields(given)}
    return {field.name: value for field, value in values.items() if value != field.default}


def _logprob_fields(message: dict[str, Any]) -> list[str]:
    return [name for name in message if "logprob" in _COMPLETION_FIELDS[name]]


def _replace(value: Any, old: float | None, new: float | None) -> Any:
    """The same lists of numbers with one number for another."""
    if isinstance(value, list):
        return [_replace(item, old, new) for item in value]
    return new if value == old else value


def _checked(message: Any, wanted: type, kinds: dict[str, str]) -> dict[str, Any]:
    """A copy of the message, in which the fields of `wanted` without a default are present."""
    what = wanted.__name__.lower()
    if not isinstance(message, dict):
        raise InvalidMessage(f"{what}: is a {type(message).__name__}, expected a JSON object")
    required = {
        field.name for field in dataclasses.fields(wanted) if field.default is dataclasses.MISSING
    }
    missing, unknown = sorted(required - set(message)), sorted(set(message) - set(kinds))
    if missing or unknown:
        raise InvalidMessage(f"{what}: missing fields {missing}, unknown fields {unknown}")
    for name, value in message.items():
        if not _is_a(value, kinds[name]):
            raise InvalidMessage(f"{what}: {name} is {value!r:.80}, expected {kinds[name]}")
    return dict(message)


def _is_a(value: Any, kind: str) -> bool:
    if kind in _CLASSES:
        return type(value) in _CLASSES[kind]
    if kind == "[int, float]":
        return (
            isinstance(value, list) and len(value) == 2 and all(map(_is_a, value, ("int", "float")))
        )
    item = kind[5:-1]
    if not isinstance(value, list):
        return False
    if item in _CLASSES:  # a long list of tokens is read at C's speed
        return set(map(type, value)) <= _CLASSES[item]
    return all(_is_a(entry, item) for entry in value)
