"""The language of `chat.CharChat` as general text: prompts, messages and answers of a service.

It is a `data.text.Text`. A conversation of a user, an assistant and a tool has the ids that an
episode of the same texts has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxrl_single import messages as messages_lib
from jaxrl_single.envs import chat


class CharText:
    """A `Text` of one character per token."""

    def __init__(self, char_chat: chat.CharChat):
        self._chat = char_chat
        self.vocab_size = char_chat.vocab_size
        self.stop_token_ids = char_chat.stop_token_ids
        self.template = ""
        self.tool_format: str | None = None

    def encode(self, text: str) -> list[int]:
        """Ids of a text, markers among them; ValueError on an unknown character."""
        return self._chat.encode(text)

    def tokenise(self, text: str) -> list[int]:
        """See `text.Text.tokenise`; this language puts nothing around a text."""
        return self._chat.encode(text)

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """The pieces in a row; the markers around messages show on request, `<call>` always."""
        pieces = (self._chat.piece(token_id) for token_id in ids)
        return "".join(piece for piece in pieces if keep_special or _is_said(piece))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_args: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[int]:
        """Ids of a conversation.

        Args:
          messages: {"role": "user", "assistant" or "tool", "content": text}.
          tools: must be None or empty: the language has no words for them.
          add_generation_prompt: end with `<assistant>`.
          continue_final: end within the last message instead, before its `<end>`.
          template_args: must be empty, as `tools`.

        Raises:
          ValueError: tools, variables, another role, or a character that the language lacks.
        """
        if tools:
            raise ValueError("this model's language has no place for tools")
        if template_args:
            raise ValueError(f"this model has no chat template to set {sorted(template_args)} in")
        assistant = self._chat.prompt("")[-1]
        found: list[int] = []
        for message in messages_lib.normalise(messages):
            role, content = message["role"], message["content"]
            if "tool_calls" in message:
                raise ValueError("this model's language has no place for tool calls")
            if role == "user":
                found += self._chat.prompt(content)[:-1]
            elif role == "tool":
                found += self._chat.observation(content)[:-1]
            elif role == "assistant":
                found += [assistant, *self._chat.said_ids(content)]
            else:
                raise ValueError(
                    f"this model knows no role {role!r}; allowed are 'user', 'assistant', 'tool'"
                )
        if continue_final:
            return found[:-1]
        return found + [assistant] * add_generation_prompt


def _is_said(piece: str) -> bool:
    return len(piece) == 1 or piece in chat.SPOKEN
