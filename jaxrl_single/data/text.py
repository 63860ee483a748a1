"""Text of a checkpoint: its tokenizer and its chat template, as transformers and vLLM apply them.

Text becomes ids once, on its way in. What a policy sampled stays ids; `decode` is for people,
stop strings and answers of a service, and nothing turns its result into ids again.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import tokenizers

from jaxrl_single.models import gguf, gguf_tokenizer, hf_config, pretrained

Message = Mapping[str, Any]

NO_ARGS: Mapping[str, Any] = MappingProxyType({})
_DEFAULT = "default"
_TOOL_USE = "tool_use"  # name of a template that is meant for messages with tools
MARK = "\ue000mark\ue000"  # marks a place in a rendering; private use: no template looks for it


class Text(Protocol):
    """Between text and token ids.

    Attributes:
      vocab_size: ids are below it; a model's embedding may have more rows.
      stop_token_ids: a generation ends with one of these.
      template: source of the chat template for conversations with tools, "" if there is none.
    """

    vocab_size: int
    stop_token_ids: tuple[int, ...]
    template: str

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
    ):
        """Wraps a tokenizer.

        Args:
          templates: chat templates (Jinja) by name; "default" is used, "tool_use" with tools.
          special_tokens: what templates see by name, such as eos_token.
          where: it comes from, for messages.
          now: the time that templates show, many of them as the day; None = the present.

        Raises:
          ValueError: a template is not in order.
        """
        self._tokenizer = tokenizer
        self._where = where
        self._special_tokens = dict(special_tokens or {})
        self._templates = {
            name: _compiled(source, f"{where}, chat template {name!r}", now)
            for name, source in (templates or {}).items()
        }
        self.template = next(
            (templates[name] for name in (_TOOL_USE, _DEFAULT) if name in (templates or {})), ""
        )
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self.stop_token_ids = stop_token_ids

    @classmethod
    def load(cls, path: str | os.PathLike, *, now: datetime.datetime | None = None) -> HfText:
        """Reads tokenizer, chat template and stop tokens of a checkpoint, or of a GGUF file.

        A directory has tokenizer.json. The template is that of chat_template.jinja, else of
        tokenizer_config.json. The stop tokens are those of generation_config.json or config.json,
        else the tokenizer's eos_token. `now` is the time that the template shows, see `HfText`.

        Raises:
          ValueError: a file is missing or not in order.
        """
        directory = pretrained.locate(path)
        if directory.is_file():
            return cls._of_gguf(gguf.File(directory), now)
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
        )

    @classmethod
    def _of_gguf(cls, file: gguf.File, now: datetime.datetime | None) -> HfText:
        parts = gguf_tokenizer.read(file)
        return cls(
            parts.tokenizer,
            stop_token_ids=parts.stop_token_ids,
            templates=parts.templates,
            special_tokens=parts.special_tokens,
            where=str(file.path),
            now=now,
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
        """See `Text.render`. Special tokens spelled out in a message become such tokens."""
        text = self.render_text(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            template_args=template_args,
        )
        return self.tokenise(text)

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
        if continue_final:
            messages = _marked(messages)
        given = {
            "messages": messages,
            "tools": tools,
            "documents": None,  # templates ask whether there are any
            "add_generation_prompt": add_generation_prompt and not continue_final,
        }
        taken = sorted(given.keys() & template_args.keys())
        if taken:
            raise ValueError(f"the variables {taken} of a chat template can't be set by hand")
        try:
            text = self._template(tools).render(self._special_tokens | {**template_args} | given)
        # A template is a program of others: wrong messages end it in many ways.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise ValueError(
                f"{self._where}: the chat template refuses these messages: {error}"
            ) from error
        return self._until_mark(text) if continue_final else text

    def _until_mark(self, text: str) -> str:
        before, mark, _ = text.partition(MARK)
        if not mark:
            raise ValueError(
                f"{self._where}: the chat template does not show the last message as it is, so it "
                "cannot be continued"
            )
        return before

    def _template(self, tools: Sequence[Mapping[str, Any]] | None) -> jinja2.Template:
        for name in (*([_TOOL_USE] if tools else []), _DEFAULT):
            if name in self._templates:
                return self._templates[name]
        raise ValueError(
            f"{self._where}: there is no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); give prompts as text or token ids"
        )


def _marked(messages: Sequence[Message]) -> list[Message]:
    """With a mark at the end of the last message's content."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str):
        raise ValueError("only a last message whose content is text can be continued")
    return [*messages[:-1], {**messages[-1], "content": content + MARK}]


class _Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, which marks for training what it contains."""

    tags = frozenset({"generation"})

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _compiled(source: str, where: str, now: datetime.datetime | None) -> jinja2.Template:
    """A chat template; what it can do and see is what transformers gives it."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: (now or datetime.datetime.now()).strftime(
        form
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"{where}, line {error.lineno}: {error.message}") from error


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter writes < > & ' for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


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
        templates = {entry["name"]: entry["template"] for entry in found}
    else:
        templates = {_DEFAULT: found} if isinstance(found, str) else {}
    files = {_DEFAULT: directory / "chat_template.jinja"}
    files |= {path.stem: path for path in (directory / "additional_chat_templates").glob("*.jinja")}
    for name, path in files.items():
        if path.exists():
            templates[name] = path.read_text(encoding="utf-8")
    return templates
