"""A recorded conversation as the tokens that a policy would have read and written. No jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from jaxrl_single import messages as messages_lib
from jaxrl_single.chat import shadows


class Renders(Protocol):
    """The part of `data.text.HfText` that is needed here."""

    stop_token_ids: tuple[int, ...]

    def show(
        self,
        messages: Sequence[messages_lib.Message],
        *,
        tools: Sequence[messages_lib.Tool] | None,
        add_generation_prompt: bool,
        template_args: Mapping[str, Any],
    ) -> shadows.Shown: ...

    def ids_of(self, shown: shadows.Shown) -> list[int]: ...


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A conversation, in the form of a trajectory's arrays.

    Attributes:
      ids: [T] token ids.
      action_mask: [T] whether the assistant wrote it: its words, its calls and what ends its turn.
      segment_ids: [T] from 1. A template that shows the past otherwise than it was begins a new
        segment, whose context repeats what it shows.
    """

    ids: list[int]
    action_mask: list[bool]
    segment_ids: list[int]


def tokens(
    text: Renders,
    messages: Sequence[messages_lib.Message],
    *,
    tools: Sequence[messages_lib.Tool] | None = None,
    template_args: Mapping[str, Any] = MappingProxyType({}),
) -> Tokens:
    """Every turn of the assistant once, behind what it had read until then.

    Raises:
      ValueError: the template refuses the messages, there is no turn of the assistant, or one that
        the template does not show behind its own beginning of such a turn.
    """
    given = messages_lib.normalise(messages)
    numbers = [number for number, one in enumerate(given) if one["role"] == "assistant"]
    if not numbers:
        raise ValueError("no message of the assistant: there is nothing to learn from")
    found = Tokens([], [], [])
    current: list[int] = []  # of the present segment
    options = {"tools": tools, "template_args": template_args}
    for number in numbers:
        before = text.show(given[:number], add_generation_prompt=True, **options)
        context = text.ids_of(before)
        continues = bool(current) and context[: len(current)] == current
        more = context[len(current) :] if continues else context
        action = _action(text, given[: number + 1], before, options)
        segment = (found.segment_ids[-1] if found.segment_ids else 0) + (not continues)
        found.ids.extend(more + action)
        found.action_mask.extend([False] * len(more) + [True] * len(action))
        found.segment_ids.extend([segment] * (len(more) + len(action)))
        current = context + action
    return found


def _action(
    text: Renders,
    messages: Sequence[messages_lib.Message],
    before: shadows.Shown,
    options: Mapping[str, Any],
) -> list[int]:
    """Ids of the last message, up to what ends it."""
    whole = text.show(messages, add_generation_prompt=False, **options)
    if not whole.text.startswith(before.text):
        raise ValueError(
            f"messages[{len(messages) - 1}]: the chat template does not show this turn behind its "
            "own beginning of one; set its variables (template_args) so that it does"
        )
    ids = text.ids_of(whole[len(before.text) :])
    stops = [place for place, token in enumerate(ids) if token in text.stop_token_ids]
    if not stops:  # the next speaker's name ends it
        ids, stops = [*ids, text.stop_token_ids[0]], [len(ids)]
    return ids[: stops[0] + 1]
