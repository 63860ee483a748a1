"""Episodes in the language of a real model: its tokenizer and its chat template.

The conversation is kept as messages, the assistant's as the raw text that it sampled, and rendered
whole after each observation. What the rendering adds behind the sampled action is what the policy
reads next; the sampled ids stay as they are.

A template may show the past otherwise than it was: many leave out earlier thoughts once somebody
speaks. Then the rendering does not continue what the policy has read and written, and the whole of
it becomes the context of a new segment. A template that only moves blanks at the ends of a message
or of its parts rewrites nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_single.chat import shadows
from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import chat, thoughts

ON_REWRITE = ("segment", "append")


class TextChat:
    """A `chat.Chat` of a tokenizer and a chat template.

    Attributes:
      vocab_size: ids are below it; the model's embedding may have more rows.
      stop_token_ids: see `chat.Chat`.
    """

    def __init__(
        self,
        text: text_lib.HfText,
        *,
        system: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        template_args: Mapping[str, Any] = text_lib.NO_ARGS,
        on_rewrite: str = "segment",
    ):
        """Checks that the template can say what an episode needs.

        Args:
          system: the first message; empty = what the template says by itself.
          tools: JSON schemas of the functions that the model may call; not every template shows
            them.
          template_args: further variables of the template, such as enable_thinking.
          on_rewrite: what a template does that shows earlier messages otherwise than they were:
            "segment" opens a new segment with what it shows; "append" leaves the past as it was.

        Raises:
          ValueError: there is no chat template, it refuses such messages, or no token ends an
            action.
        """
        if on_rewrite not in ON_REWRITE:
            raise ValueError(f"on_rewrite is {on_rewrite!r}, allowed are {ON_REWRITE}")
        if not text.stop_token_ids:
            raise ValueError(
                "no token ends the model's messages: name it as eos_token_id in "
                "generation_config.json or config.json, or as eos_token in tokenizer_config.json"
            )
        self.text = text
        self.vocab_size = text.vocab_size
        self.stop_token_ids = text.stop_token_ids
        self.appends = on_rewrite == "append"
        self._first = [{"role": "system", "content": system}] if system else []
        self._tools = list(tools) or None
        self._template_args = dict(template_args)
        self._closing = self._closing_id()
        asked = self.show([*self._first, {"role": "user", "content": "?"}])
        self.thinks = thoughts.begun(asked.text)  # the prompt begins a thought

    def dialogue(self) -> TextDialogue:
        """See `chat.Chat`."""
        return TextDialogue(self, self._first)

    def action_ids(self, text: str) -> list[int]:
        """See `chat.Chat`. Tags of thoughts and calls become tokens; all else is text.

        A thought that the prompt has begun ends before what is said.
        """
        if self.thinks and thoughts.CLOSE not in text:
            text = f"\n{thoughts.CLOSE}\n\n{text}"
        return [*self.text.said_ids(text), self._closing]

    def save(self, path: str | os.PathLike) -> None:
        """See `chat.Chat`; the chat template is no part of that file."""
        self.text.save(path)

    def show(self, messages: Sequence[text_lib.Message], *, to_act: bool = True) -> shadows.Shown:
        """The rendering of a conversation; `to_act`: up to where the policy acts."""
        return self.text.show(
            messages,
            tools=self._tools,
            add_generation_prompt=to_act,
            template_args=self._template_args,
        )

    def _closing_id(self) -> int:
        """The stop token that the template writes behind an assistant's message."""
        spoken = [
            *self._first,
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "ok"},
        ]
        # Some templates close no message: the next speaker's name does.
        for messages in (spoken, [*spoken, {"role": "tool", "content": "!"}]):
            try:
                behind = _behind_said(self.show(messages, to_act=False))
            except ValueError:
                if messages is spoken:
                    raise
                continue  # no place for tools
            for token_id in self.text.ids_of(behind):
                if token_id in self.stop_token_ids:
                    return token_id
        return self.stop_token_ids[0]


class TextDialogue:
    """A `chat.Dialogue` of a `TextChat`."""

    def __init__(self, chat: TextChat, first: Sequence[text_lib.Message]):
        self._chat = chat
        self._messages: list[text_lib.Message] = list(first)
        self._shown = ""  # the rendering up to the last action, as text
        self._action = ""  # its text
        self._stop_id: int | None = None  # and what ended it
        self._sampled: list[tuple[str, list[int]]] = []  # text and ids of each action

    def prompt(self, question: str) -> list[int]:
        """See `chat.Dialogue`; ValueError if the template refuses it."""
        self._messages.append({"role": "user", "content": question})
        shown = self._chat.show(self._messages)
        self._shown = shown.text
        return self._chat.text.ids_of(shown)

    def act(self, token_ids: Sequence[int]) -> str:
        """See `chat.Dialogue`; special tokens within the action are part of its text.

        What a thought begins with is told, too, where the prompt has it.
        """
        stopped = bool(token_ids) and token_ids[-1] in self._chat.stop_token_ids
        self._stop_id = token_ids[-1] if stopped else None
        said = token_ids[:-1] if stopped else token_ids
        action = self._chat.text.sampled(said)
        self._messages.append({"role": "assistant", "content": action})
        self._action = str(action)
        self._sampled.append((self._action, list(said)))
        begun = self._chat.thinks and not self._action.lstrip().startswith(thoughts.OPEN)
        return thoughts.OPEN + self._action if begun else self._action

    def observe(self, *texts: str, role: str = "tool") -> chat.Observed:
        """See `chat.Dialogue`.

        Raises:
          ValueError: the template refuses it, or the role is not of chat.ROLES.
        """
        if role not in chat.ROLES:
            raise ValueError(f"role is {role!r}, allowed are {chat.ROLES}")
        action = len(self._messages) - 1
        self._messages += [{"role": role, "content": text} for text in texts]
        shown = self._chat.show(self._messages)
        ids = self._continuation(shown, action)
        self._shown = shown.text
        if ids is None:
            return chat.Observed(self._with_own_ids(shown), opens_segment=True)
        return chat.Observed(ids)

    def _continuation(self, shown: shadows.Shown, action: int) -> list[int] | None:
        """What follows the sampled stop token; None if `shown` does not continue it."""
        if self._stop_id is None:
            return None
        stop = self._chat.text.decode([self._stop_id], keep_special=True)
        behind = None
        if shown.text.startswith(self._shown):
            behind = _behind(shown[len(self._shown) :], self._action)
        if behind is None or not behind.text.startswith(stop):
            if not self._chat.appends:
                return None
            behind = self._behind_any_action(action)
        ids = self._chat.text.ids_of(behind)
        if ids[:1] == [self._stop_id]:
            return ids[1:]
        # The template goes on without a token at the end of the action.
        return ids if self._chat.appends else None

    def _with_own_ids(self, shown: shadows.Shown) -> list[int]:
        """Ids of a rendering, in which actions that it shows whole are as they were sampled."""
        ids_of = self._chat.text.ids_of
        found, place = [], 0
        for action, ids in self._sampled:
            start = _place_of(action, shown, place)
            if start is not None:
                found += ids_of(shown[place:start]) + ids
                place = start + len(action)
        return found + ids_of(shown[place:])

    def _behind_any_action(self, action: int) -> shadows.Shown:
        """What the template writes behind the action, whatever it makes of the past."""
        other = {"role": "assistant", "content": "ok"}
        messages = [*self._messages[:action], other, *self._messages[action + 1 :]]
        return _behind_said(self._chat.show(messages))


def _place_of(action: str, shown: shadows.Shown, start: int) -> int | None:
    """Where a rendering shows an action whole, as an assistant's and not as somebody's words."""
    while action and (start := shown.text.find(action, start)) >= 0:
        origins = shown.origins[start : start + len(action)]
        if (origins != shadows.CONTENT).all() and (origins == shadows.SAID).any():
            return start
        start += 1
    return None


def _behind_said(shown: shadows.Shown) -> shadows.Shown:
    """What follows the last words of an assistant, without blanks; nothing where there are none."""
    places = np.flatnonzero(shown.origins == shadows.SAID)
    return _without_blanks(shown[int(places[-1]) + 1 if len(places) else len(shown.text) :])


def _without_blanks(shown: shadows.Shown) -> shadows.Shown:
    return shown[len(shown.text) - len(shown.text.lstrip()) :]


def _behind(shown: shadows.Shown, beginning: str) -> shadows.Shown | None:
    """It without its `beginning`, or None if it begins otherwise. Blanks don't count."""
    text, place = shown.text, 0
    if text.startswith(beginning):
        return _without_blanks(shown[len(beginning) :])
    for character in beginning:
        if character.isspace():
            continue
        while text[place : place + 1].isspace():
            place += 1
        if text[place : place + 1] != character:
            return None
        place += 1
    return _without_blanks(shown[place:])
