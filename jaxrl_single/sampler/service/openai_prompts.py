"""Prompts and messages of OpenAI's endpoints, as token ids."""

from __future__ import annotations

from typing import Any

from jaxrl_single import messages as messages_lib
from jaxrl_single.data import text as text_lib
from jaxrl_single.sampler.service import fields as fields_lib
from jaxrl_single.sampler.service import http_errors, openai_tools


def of_completion(prompt: Any, text: text_lib.Text) -> list[list[int]]:
    """Token ids of each prompt: a text, a list of ids, or a list of these.

    Raises:
      ApiError: 400, it is something else, is empty, or the text can't be encoded.
    """
    several = [prompt] if isinstance(prompt, str) or fields_lib.are_ids(prompt) else prompt
    if not isinstance(several, list) or not several:
        raise _wrong_prompt(prompt)
    found = []
    for one in several:
        if isinstance(one, str):
            found.append(_encoded(one, text))
        elif fields_lib.are_ids(one):
            found.append(one)
        else:
            raise _wrong_prompt(prompt)
        if not found[-1]:
            raise http_errors.wrong("a prompt is empty; it needs at least one token", "prompt")
    return found


def of_chat(
    found: fields_lib.Fields, text: text_lib.Text
) -> tuple[list[int], list[dict[str, Any]]]:
    """The messages in the model's chat template, and the tools that the answer may call.

    Returns:
      Token ids, and JSON schemas.

    Raises:
      ApiError: 400, a message or a tool is malformed, or the template refuses them.
    """
    messages = found.take("messages")
    if not isinstance(messages, list) or not messages:
        raise http_errors.wrong("messages must be a list of at least one message", "messages")
    schemas = openai_tools.take_schemas(found)
    continue_final = found.boolean("continue_final_message")
    try:
        rendered = text.render(
            messages_lib.normalise(messages),
            tools=schemas or None,
            add_generation_prompt=found.boolean("add_generation_prompt", not continue_final),
            continue_final=continue_final,
            template_args=found.mapping("chat_template_kwargs"),
        )
    except ValueError as error:
        raise http_errors.wrong(f"messages: {error}", "messages") from None
    if not rendered:
        raise http_errors.wrong("the chat template makes nothing of these messages", "messages")
    return rendered, schemas


def check(prompts: list[list[int]], name: str, *, vocab_size: int, cache_length: int) -> None:
    """Refuses ids that the model does not have, and prompts that leave no room for an answer.

    Args:
      name: of the field that the prompts come from.

    Raises:
      ApiError: 400.
    """
    for number, prompt in enumerate(prompts):
        if max(prompt) >= vocab_size:
            raise http_errors.wrong(
                f"{name} {number} has the token id {max(prompt)}, ids are 0 .. {vocab_size - 1}",
                name,
            )
        if len(prompt) >= cache_length:
            raise http_errors.wrong(
                f"{name} {number} has {len(prompt)} tokens; the model's context holds "
                f"{cache_length}, its answer included",
                name,
                "context_length_exceeded",
            )


def _wrong_prompt(prompt: Any) -> http_errors.ApiError:
    return http_errors.wrong(
        f"prompt is {prompt!r:.80}, expected a text, a list of token ids, or a list of these",
        "prompt",
    )


def _encoded(prompt: str, text: text_lib.Text) -> list[int]:
    try:
        return text.encode(prompt)
    except ValueError as error:
        raise http_errors.wrong(f"prompt: {error}", "prompt") from None
