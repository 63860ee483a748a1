"""A file of prompts: JSON lines, each with one of

    {"prompt_token_ids": [1, 2, 3]}
    {"prompt": "Once upon a time"}
    {"messages": [{"role": "user", "content": "Hello"}], "tools": [...]}     tools are optional

and, if wanted, "id" (any JSON value, copied to the answers) and "max_tokens" (of its answers).
Messages may also have "chat_template_kwargs": further variables of the chat template, such as
{"enable_thinking": false}.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from jaxrl_single.data import text as text_lib
from jaxrl_single.lab import lines as lines_lib

_KINDS = ("prompt_token_ids", "prompt", "messages")
_TEMPLATE_ARGS = "chat_template_kwargs"
_ALLOWED = {*_KINDS, "tools", _TEMPLATE_ARGS, "id", "max_tokens"}


class BadPrompt(ValueError):
    """A line of the file cannot be used; the message names the line and the field."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One line.

    Attributes:
      index: of the line among the prompts, from 0.
      id: what the line has as "id", None if nothing.
      tokens: the prompt's token ids, at least one.
      max_tokens: most new tokens of an answer.
    """

    index: int
    id: Any
    tokens: tuple[int, ...]
    max_tokens: int


def read(
    path: str | os.PathLike,
    text: text_lib.Text | None,
    *,
    vocab_size: int,
    context_length: int,
    max_tokens: int,
) -> list[Prompt]:
    """Reads all prompts; empty lines are left out.

    Args:
      text: of the model; None where it has no tokenizer, then only token ids are possible.
      vocab_size: of the model; ids are below it.
      context_length: prompt and answer together.
      max_tokens: of prompts that don't say.

    Raises:
      BadPrompt: see there; all lines are checked before anything is generated.
      OSError: the file cannot be read.
    """
    prompts = []
    for number, line in lines_lib.numbered(path):
        if not line.strip():
            continue
        try:
            prompt = _prompt(len(prompts), line, text, max_tokens)
            _check(prompt, vocab_size, context_length)
        except ValueError as error:
            raise BadPrompt(f"{path}, line {number}: {error}") from error
        prompts.append(prompt)
    if not prompts:
        raise BadPrompt(f"{path}: there is no prompt in it")
    return prompts


def _prompt(index: int, line: str, text: text_lib.Text | None, max_tokens: int) -> Prompt:
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found a {type(record).__name__}")
    unknown = sorted(set(record) - _ALLOWED)
    if unknown:
        raise ValueError(f"unknown fields {unknown}; allowed are {sorted(_ALLOWED)}")
    kinds = [kind for kind in _KINDS if kind in record]
    if len(kinds) != 1:
        raise ValueError(f"has {kinds or 'none'} of {', '.join(_KINDS)}; give exactly one")
    max_tokens = record.get("max_tokens", max_tokens)
    if not _is_int(max_tokens) or max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens!r}, expected a whole number >= 1")
    tokens = tuple(_tokens(record, kinds[0], text))
    return Prompt(index, record.get("id"), tokens, max_tokens)


def _tokens(record: dict[str, Any], kind: str, text: text_lib.Text | None) -> list[int]:
    value = record[kind]
    if kind != "messages" and _TEMPLATE_ARGS in record:
        raise ValueError(f"{_TEMPLATE_ARGS} are for messages only; this is a {kind}")
    if kind == "prompt_token_ids":
        if not isinstance(value, list) or not all(map(_is_int, value)):
            raise ValueError("prompt_token_ids: expected a list of whole numbers")
        return value
    if text is None:
        raise ValueError(f"{kind}: the model has no tokenizer.json; give prompt_token_ids")
    if kind == "prompt":
        if not isinstance(value, str):
            raise ValueError(f"prompt: expected a text, found a {type(value).__name__}")
        return text.encode(value)
    template_args = record.get(_TEMPLATE_ARGS)
    template_args = {} if template_args is None else template_args
    if not isinstance(template_args, dict):
        raise ValueError(f"{_TEMPLATE_ARGS}: expected an object")
    if value == []:
        raise ValueError("messages: there is no message; give at least one")
    return text.render(value, tools=record.get("tools"), template_args=template_args)


def _check(prompt: Prompt, vocab_size: int, context_length: int) -> None:
    if not prompt.tokens:
        raise ValueError("the prompt has no token; give at least one")
    for place, token in enumerate(prompt.tokens):
        if not 0 <= token < vocab_size:
            raise ValueError(f"token {place} is {token}, ids are 0 .. {vocab_size - 1}")
    if len(prompt.tokens) >= context_length:
        raise ValueError(
            f"the prompt has {len(prompt.tokens)} tokens; the model's context is "
            f"{context_length}, and an answer needs at least one of them"
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
