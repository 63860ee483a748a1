"""The language of an episode: markers, characters, and their token ids.

`Chat` is what a rollout needs; `CharChat` is the character-level form for tiny models (the form of
a real model's tokenizer and chat template is rollout/text_chat.py). An episode of the calculator
reads

    <user>(37+58)*46<end><assistant><call>37+58<end><tool>95<end><assistant>...

where the policy samples from after `<assistant>` up to `<end>`, both `<call>` and `<end>` included.
Text is turned into ids once, when it enters the episode; sampled ids are never turned into text
and back.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

import tokenizers
from tokenizers import decoders, models

MARKERS = ("<pad>", "<user>", "<assistant>", "<tool>", "<call>", "<answer>", "<end>")
SPOKEN = ("<call>", "<answer>")  # words of the agent; all others frame a conversation
CALCULATOR_CHARACTERS = "0123456789+-*()eor"  # the last three spell the observation "error"
ROLES = ("tool", "user")  # who may speak between two actions
_VOCABULARY_MULTIPLE = 8  # matrix sizes that kernels and shards like
_PIECE = re.compile("|".join(MARKERS) + "|.", re.DOTALL)
_SAID_PIECE = re.compile("|".join(SPOKEN) + "|.", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Observed:
    """What the policy reads before its next action.

    Attributes:
      ids: they follow the tokens of the episode; or, if `opens_segment`, they are the whole
        context of the next action, and nothing before them is read any more.
      opens_segment: the language has rewritten what was said before.
    """

    ids: list[int]
    opens_segment: bool = False


class Dialogue(Protocol):
    """The texts of one episode, told in order: `prompt`, then `act` and `observe` in turn."""

    def prompt(self, question: str) -> list[int]:
        """The beginning of the episode, up to where the policy starts to sample."""
        ...

    def act(self, token_ids: Sequence[int]) -> str:
        """The text of a sampled action without its stop token.

        It never fails, whatever was sampled. An action that a limit cut has no stop token, and no
        observation follows it.
        """
        ...

    def observe(self, *texts: str, role: str = "tool") -> Observed:
        """What follows a finished action, up to where the policy samples again.

        Args:
          texts: a message each; several when several calls of a tool are answered.
          role: who says it, of ROLES.
        """
        ...


class Chat(Protocol):
    """The language of a model: makes dialogues, and ids of what a script says.

    Attributes:
      vocab_size: rows of the model's embedding.
      stop_token_ids: a sampled action ends with one of these.
    """

    vocab_size: int
    stop_token_ids: tuple[int, ...]

    def dialogue(self) -> Dialogue:
        """Begins an episode."""
        ...

    def action_ids(self, text: str) -> list[int]:
        """The ids a policy would have sampled for this action, stop token included."""
        ...

    def save(self, path: str | pathlib.Path) -> None:
        """Writes a standard tokenizer.json."""
        ...


class CharChat:
    """One token per character, one per marker; the vocabulary is filled up to a multiple of 8."""

    def __init__(self, tokenizer: tokenizers.Tokenizer):
        """Wraps a tokenizer made by `build` or read by `load`.

        Raises:
          ValueError: the tokenizer lacks a marker, or an entry is neither marker nor character.
        """
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        missing = [marker for marker in MARKERS if marker not in vocabulary]
        if missing:
            raise ValueError(f"tokenizer has no {missing}; CharChat needs all of {list(MARKERS)}")
        self._tokenizer = tokenizer
        self._ids = vocabulary
        self._pieces = {token_id: piece for piece, token_id in vocabulary.items()}
        self._characters = "".join(sorted(piece for piece in vocabulary if len(piece) == 1))
        self.vocab_size = max(vocabulary.values()) + 1
        self._end = vocabulary["<end>"]
        self.stop_token_ids = (self._end,)

    @classmethod
    def build(cls, characters: str = CALCULATOR_CHARACTERS) -> CharChat:
        """A chat that knows the markers and these characters."""
        pieces = list(MARKERS) + list(dict.fromkeys(characters))
        unused = -len(pieces) % _VOCABULARY_MULTIPLE
        pieces += [f"<unused{number}>" for number in range(unused)]
        # BPE without merges splits a text into its characters, in every reader of tokenizer.json.
        model = models.BPE({piece: number for number, piece in enumerate(pieces)}, [])
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.add_special_tokens([piece for piece in pieces if len(piece) > 1])
        tokenizer.decoder = decoders.Fuse()
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | pathlib.Path) -> CharChat:
        """Reads a tokenizer.json that `save` wrote."""
        return cls(tokenizers.Tokenizer.from_file(str(path)))

    def save(self, path: str | pathlib.Path) -> None:
        """Writes a standard tokenizer.json."""
        self._tokenizer.save(str(path))

    def dialogue(self) -> CharDialogue:
        """See `Chat.dialogue`."""
        return CharDialogue(self)

    def prompt(self, question: str) -> list[int]:
        """`<user>question<end><assistant>`; ValueError on an unknown character."""
        return self._message("<user>", question)

    def observation(self, text: str) -> list[int]:
        """`<tool>text<end><assistant>`; ValueError on an unknown character."""
        return self._message("<tool>", text)

    def action_text(self, token_ids: Sequence[int]) -> str:
        """Joins the pieces up to the first `<end>`; ids out of the vocabulary show as `<id 99>`."""
        pieces = []
        for token_id in token_ids:
            if token_id == self._end:
                break
            pieces.append(self.piece(token_id))
        return "".join(pieces)

    def action_ids(self, text: str) -> list[int]:
        """The pieces of the text, markers among them, and `<end>`; ValueError on unknown ones."""
        return [*self.encode(text), self._end]

    def said_ids(self, text: str) -> list[int]:
        """As `action_ids`, of an agent's words from outside: other markers are no markers."""
        return [*self._encode(_SAID_PIECE.findall(text), text), self._end]

    def encode(self, text: str) -> list[int]:
        """The pieces of the text, markers among them; ValueError on unknown ones."""
        return self._encode(_PIECE.findall(text), text)

    def piece(self, token_id: int) -> str:
        """A marker or a character; ids out of the vocabulary show as `<id 99>`."""
        return self._pieces.get(int(token_id), f"<id {int(token_id)}>")

    def messages(self, role: str, texts: Sequence[str]) -> list[int]:
        """`<role>text<end>` for each text, then `<assistant>`.

        Raises:
          ValueError: the role is not of ROLES, or a character is unknown.
        """
        if role not in ROLES:
            raise ValueError(f"role is {role!r}, allowed are {ROLES}")
        found = [self._message(f"<{role}>", text)[:-1] for text in texts]
        return [token_id for ids in found for token_id in ids] + [self._ids["<assistant>"]]

    def _message(self, marker: str, text: str) -> list[int]:
        # Character by character: a marker spelled out in a question must not become a marker.
        content = self._encode(text, text)
        return [self._ids[marker], *content, self._end, self._ids["<assistant>"]]

    def _encode(self, pieces: Iterable[str], text: str) -> list[int]:
        ids = []
        for position, piece in enumerate(pieces):
            token_id = self._ids.get(piece)
            if token_id is None:
                raise ValueError(
                    f"{piece!r} at position {position} of {text!r} is not in the vocabulary of "
                    f"this chat; allowed characters are {self._characters!r}"
                )
            ids.append(token_id)
        return ids


class CharDialogue:
    """A `Dialogue` of a `CharChat`, which never rewrites: each message follows the last one."""

    def __init__(self, chat: CharChat):
        self._chat = chat

    def prompt(self, question: str) -> list[int]:
        """See `Dialogue.prompt`; ValueError on an unknown character."""
        return self._chat.prompt(question)

    def act(self, token_ids: Sequence[int]) -> str:
        """See `Dialogue.act`."""
        return self._chat.action_text(token_ids)

    def observe(self, *texts: str, role: str = "tool") -> Observed:
        """See `Dialogue.observe`; ValueError on an unknown character."""
        return Observed(self._chat.messages(role, texts))
