"""Text of a checkpoint: its tokenizer and its chat template, as transformers and vLLM apply them.

Text becomes ids once, on its way in. What a policy sampled stays ids; `decode` is for people,
stop strings and answers of a service, and nothing turns its result into ids again.
"""

from __future__ import annotations

import datetime
import os
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import tokenizers

from jaxrl_single.chat import encoding, hidden, rendering, shadows
from jaxrl_single.chat import templates as templates_lib
from jaxrl_single.models import gguf, gguf_tokenizer, hf_config, pretrained

Message = Mapping[str, Any]

NO_ARGS: Mapping[str, Any] = MappingProxyType({})


class Text(Protocol):
    """Between text and token ids.

    Attributes:
      vocab_size: ids are below it; a model's embedding may have more rows.
      stop_token_ids: a generation ends with one of these.
      template: source of the chat template for conversations with tools, "" if there is none.
      tool_format: how the model writes calls (`tool_formats.FORMATS`), None if nothing tells.
    """

    vocab_size: int
    stop_token_ids: tuple[int, ...]
    template: str
    tool_format: str | None

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with what the tokenizer puts around one (often nothing).

        Raises:
          ValueError: the text can't be encoded.
        """
        ...

    def tokenise(self, text: str) -> list[int]:
        """Ids of a rendered text or a piece of one: `encode` with nothing put around it."""
        ...

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """The text of ids; never fails, whatever was sampled. Special tokens show on request."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_args: Mapping[str, Any] = NO_ARGS,
    ) -> list[int]:
        """Ids of a conversation, up to where the assistant goes on.

        Args:
          messages: {"role", "content", ...}.
          tools: JSON schemas of the functions that the model may call.
          add_generation_prompt: end with the beginning of an assistant's message.
          continue_final: end within the last message instead, right after its content.
          template_args: further variables of the template, such as enable_thinking.

        Raises:
          ValueError: there is no chat template, or it refuses these messages or variables.
        """
        ...


class HfText:
    """A `Text` of the tokenizer files in a checkpoint's directory."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        stop_token_ids: tuple[int, ...] = (),
        templates: Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        where: str = "the tokenizer",
        now: datetime.datetime | None = None,
        tools_fallback: str = "describe",
    ):
        """Wraps a tokenizer.

        Args:
          templates: chat templates (Jinja) by name; "default" is used, "tool_use" with tools.
          special_tokens: what templates see by name, such as eos_token.
          where: it comes from, for messages.
          now: the time that templates show, many of them as the day; None = the present.
          stop_token_ids: with these ends the token that the template writes behind a message of
            the assistant, which many a base model's files don't name.
          tools_fallback: for a template that shows no tools: "describe" them in the system
            message, or "refuse" them.

        Raises:
          ValueError: a template is not in order.
        """
        self._tokenizer = tokenizer
        self._encoder = encoding.Encoder(tokenizer)
        templates = templates or {}
        self.template = next(
            (templates[one] for one in (rendering.TOOL_USE, rendering.DEFAULT) if one in templates),
            "",
        )
        self._renderer = rendering.Renderer(
            {
                name: templates_lib.compiled(source, f"{where}, chat template {name!r}", now)
                for name, source in templates.items()
            },
            self._encoder,
            template=self.template,
            special_tokens=special_tokens or {},
            tools_fallback=tools_fallback,
            where=where,
        )
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        closing = self._renderer.closing_ids() if templates else ()
        self.stop_token_ids = tuple(dict.fromkeys((*stop_token_ids, *closing)))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        *,
        now: datetime.datetime | None = None,
        tools_fallback: str = "describe",
    ) -> HfText:
        """Reads tokenizer, chat template and stop tokens of a checkpoint, or of a GGUF file.

        A directory has tokenizer.json. The template is that of chat_template.jinja, else of
        tokenizer_config.json. The stop tokens are those of generation_config.json or config.json,
        else the tokenizer's eos_token. `now` is the time that the template shows, see `HfText`.

        Raises:
          ValueError: a file is missing or not in order.
        """
        directory = pretrained.locate(path)
        if directory.is_file():
            return cls._of_gguf(gguf.File(directory), now, tools_fallback)
        tokenizer = _tokenizer(directory / "tokenizer.json")
        path = directory / "tokenizer_config.json"
        config = hf_config.read_object(path) if path.exists() else {}
        special = _special_tokens(config)
        stop = hf_config.stop_token_ids(directory)
        eos = tokenizer.token_to_id(special.get("eos_token", ""))
        if not stop and eos is not None:
            stop = (eos,)
        return cls(
            tokenizer,
            stop_token_ids=stop,
            templates=_templates(directory, config),
            special_tokens=special,
            where=str(directory),
            now=now,
            tools_fallback=tools_fallback,
        )

    @classmethod
    def _of_gguf(
        cls, file: gguf.File, now: datetime.datetime | None, tools_fallback: str
    ) -> HfText:
        parts = gguf_tokenizer.read(file)
        return cls(
            parts.tokenizer,
            stop_token_ids=parts.stop_token_ids,
            templates=parts.templates,
            special_tokens=parts.special_tokens,
            where=str(file.path),
            now=now,
            tools_fallback=tools_fallback,
        )

    def encode(self, text: str) -> list[int]:
        """See `Text.encode`. A special token that is spelled out becomes that token."""
        return self._ids(text, around=True)

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """See `Text.decode`; ids outside of the vocabulary give nothing."""
        known = [int(i) for i in ids if 0 <= i < self.vocab_size]
        return self._tokenizer.decode(known, skip_special_tokens=not keep_special)

    def tokenise(self, text: str) -> list[int]:
        """Ids of a rendered text or a piece of one: `encode` with nothing put around it."""
        return self._ids(text, around=False)

    def _ids(self, text: str, *, around: bool) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special_tokens=around).ids
        except TypeError as error:  # the library's word for halves of characters
            raise ValueError(f"not a text: {error} (is a character cut in half?)") from error

    def save(self, path: str | os.PathLike) -> None:
        """Writes the tokenizer.json."""
        self._tokenizer.save(str(path))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_args: Mapping[str, Any] = NO_ARGS,
    ) -> list[int]:
        """See `Text.render`. What a message or a tool spells stays text."""
        shown = self.show(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            template_args=template_args,
        )
        return self.ids_of(shown)

    def render_text(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_args: Mapping[str, Any] = NO_ARGS,
    ) -> str:
        """As `render`, before it becomes ids."""
        return self.show(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            template_args=template_args,
        ).text

    def ids_of(self, shown: shadows.Shown) -> list[int]:
        """Token ids of what `show` gave, or of a piece of it."""
        return self._encoder.ids(shown)

    def said_ids(self, text: str) -> list[int]:
        """Ids of an assistant's text: tags of thought and calls are tokens, all else is text."""
        hider = shadows.Shadows()
        message = {"role": "assistant", "content": text}
        written = hidden.messages([message], hider, self.tool_format)[0]["content"]
        return self.ids_of(hider.reveal(written)[0])

    def sampled(self, ids: Sequence[int]) -> hidden.Sampled:
        """The text of sampled ids, special tokens shown; which parts were control tokens."""
        text, visible, run = "", [], []
        controls = {token: name for name, token in self._encoder.control.items()}
        for token in [i for i in ids if 0 <= i < self.vocab_size]:
            if token in controls:
                text += self._piece(run, controls)
                visible.append((len(text), len(text) + len(controls[token])))
                text, run = text + controls[token], [token]
            else:
                run.append(token)
        text += self._piece(run, controls)
        if hidden.THOUGHT_END not in self._encoder.control:  # templates look for its letters
            visible = sorted({*visible, *hidden.thought_tags(text)})
        return hidden.Sampled(text, visible)

    def _piece(self, ids: list[int], controls: Mapping[int, str]) -> str:
        """The text of ids without that of a control token at their beginning."""
        text = self.decode(ids, keep_special=True)
        return text.removeprefix(controls[ids[0]]) if ids and ids[0] in controls else text

    @property
    def shows_tools(self) -> bool:
        """Whether the chat template has a place for tools."""
        return self._renderer.shows_tools

    @property
    def tool_format(self) -> str | None:
        """How the model writes calls (`tool_formats.FORMATS`), None where nothing tells."""
        return self._renderer.tool_format

    def show(self, messages: Sequence[Message], **options: Any) -> shadows.Shown:
        """A conversation as the template writes it, and who wrote what; see `render`."""
        return self._renderer.show(messages, **options)


def _tokenizer(path: pathlib.Path) -> tokenizers.Tokenizer:
    if not path.exists():
        raise ValueError(
            f"{path.parent} holds no {path.name}; other forms of tokenizers are not read, "
            "convert them with save_pretrained of transformers"
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path}: not a tokenizer ({error})") from error
    # What somebody's last call cut and filled up to is saved along, and is nothing of the model.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The entries NAME_token of tokenizer_config.json: a text, or an object that holds it."""
    found = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _templates(directory: pathlib.Path, config: Mapping[str, Any]) -> dict[str, str]:
    found = config.get("chat_template")
    if isinstance(found, list):
        if not all(isinstance(one, dict) and {"name", "template"} <= one.keys() for one in found):
            raise ValueError(
                f"{directory}/tokenizer_config.json: chat_template must be a text, or a list of "
                "objects with name and template"
            )
        templates = {entry["name"]: entry["template"] for entry in found}
    else:
        templates = {rendering.DEFAULT: found} if isinstance(found, str) else {}
    files = {rendering.DEFAULT: directory / "chat_template.jinja"}
    files |= {path.stem: path for path in (directory / "additional_chat_templates").glob("*.jinja")}
    for name, path in files.items():
        if path.exists():
            try:
                templates[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}: not a text in UTF-8 ({error})") from error
    return templates
