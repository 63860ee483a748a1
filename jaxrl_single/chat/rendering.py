"""A conversation through a chat template: what everybody who renders messages calls. No jax.

Nothing that was given leaves no trace. Tools that the template does not show are described in the
system message (see `hidden.described`), calls that it does not show are written into the
assistant's text, answers of tools are said by the user; what is lost even so is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jinja2
import numpy as np

from jaxrl_single import messages as messages_lib
from jaxrl_single.chat import encoding, hidden, shadows
from jaxrl_single.envs import tool_formats

DEFAULT, TOOL_USE = "default", "tool_use"  # names of templates: for all uses, for tools
TOOLS_FALLBACK = ("describe", "refuse")
MARK = "\ue000mark\ue000"  # marks a place in a rendering; private use: no template looks for it
_ASKED = {"role": "user", "content": "?"}
_FINISHED = {"add_generation_prompt": False}
_PROBE = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "g",
        "parameters": {
            "type": "object",  # templates go through what it has
            "properties": {"a": {"type": "string", "description": "h"}},
            "required": ["a"],
        },
    },
}


class Renderer:
    """The chat templates of a model.

    Attributes:
      template: source of the one for conversations with tools, "" if there is none.
    """

    def __init__(
        self,
        templates: Mapping[str, jinja2.Template],
        encoder: encoding.Encoder,
        *,
        template: str,
        special_tokens: Mapping[str, str],
        tools_fallback: str,
        where: str,
    ):
        """Takes compiled templates by name.

        Args:
          special_tokens: what templates see by name, such as eos_token.
          tools_fallback: for tools that the template does not show: of TOOLS_FALLBACK.
          where: it comes from, for messages.
        """
        if tools_fallback not in TOOLS_FALLBACK:
            raise ValueError(f"tools_fallback is {tools_fallback!r}, allowed are {TOOLS_FALLBACK}")
        self.template = template
        self.encoder = encoder
        self._templates = templates
        self._special_tokens = dict(special_tokens)
        self._describes = tools_fallback == "describe"
        self._where = where

    @functools.cached_property
    def shows_tools(self) -> bool:
        """Whether the chat template has a place for tools."""
        for first in ([], [{"role": "system", "content": "?"}]):
            try:
                missing = self._attempt([*first, _ASKED], [_PROBE], {})[1]
            except ValueError:
                continue
            return "tools" not in missing
        return False

    @functools.cached_property
    def tool_format(self) -> str | None:
        """How the model writes calls (`tool_formats.FORMATS`), None where nothing tells."""
        told = tool_formats.of_template(self.template)
        describes = self.template and self._describes and not self.shows_tools
        return hidden.DESCRIBED if told is None and describes else told

    def show(
        self,
        messages: Sequence[messages_lib.Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_args: Mapping[str, Any] = MappingProxyType({}),
    ) -> shadows.Shown:
        """A conversation as the template writes it, and who wrote what; see `Text.render`."""
        given = messages_lib.normalise(messages)
        schemas = messages_lib.check_tools(tools)
        if continue_final and not _can_continue(messages):
            raise ValueError("only a last message whose content is text can be continued")
        options = {
            "template_args": template_args,
            "add_generation_prompt": add_generation_prompt and not continue_final,
            "continue_final": continue_final,
        }
        try:
            if schemas and not self.shows_tools:
                given, schemas = self._described(given, schemas), []
            return self._complete(given, schemas, options)
        except RecursionError as error:
            raise ValueError(f"{self._where}: these messages are nested too deeply") from error

    def _described(self, given: list[dict[str, Any]], tools: list[Any]) -> list[dict[str, Any]]:
        if not self._describes:
            raise ValueError(
                f"{self._where}: the chat template shows no tools; leave tools out, or set "
                "model.tools_fallback=describe"
            )
        return hidden.described(given, tools)

    def _complete(
        self, given: list[dict[str, Any]], tools: list[Any], options: dict[str, Any]
    ) -> shadows.Shown:
        """The rendering, in which everything that was given has left a trace."""
        try:
            shown, missing = self._attempt(given, tools, options)
        except ValueError:
            answers = {i for i, one in enumerate(given) if one["role"] == "tool"}
            if not answers or self.shows_tools:
                raise
            given = hidden.answers_as_user(given, answers)  # some refuse what they don't show
            shown, missing = self._attempt(given, tools, options)
        lost = _numbers(missing, "calls") | _numbers(missing, "content")
        calls = {number for number in lost if "tool_calls" in given[number]}
        if calls:
            given = hidden.spelled(given, calls, self.tool_format)
            shown, missing = self._attempt(given, tools, options)
        answers = {i for i in _numbers(missing, "content") if given[i]["role"] == "tool"}
        if answers:
            given = hidden.answers_as_user(given, answers)
            shown, missing = self._attempt(given, tools, options)
        lost = sorted(_numbers(missing, "content") | _numbers(missing, "calls"))
        lost += [i for i in range(len(given)) if self._is_skipped(i, given, tools, options, shown)]
        # The policy would void its own episodes with words that its template leaves out.
        lost = [i for i in lost if not isinstance(given[i]["content"], hidden.Sampled)]
        if lost:
            raise ValueError(
                f"{self._where}: the chat template does not show message {lost[0]} (role "
                f"{given[lost[0]]['role']!r}); leave it out, or write it as another role"
            )
        if "tools" in missing:
            raise ValueError(f"{self._where}: the chat template does not show all tools")
        return shown

    def _is_skipped(
        self,
        number: int,
        given: list[dict[str, Any]],
        tools: list[Any],
        options: dict[str, Any],
        shown: shadows.Shown,
    ) -> bool:
        """Whether a message without words leaves nothing; others have traces."""
        message = given[number]
        if message["content"].strip() or "tool_calls" in message or len(given) == 1:
            return False
        try:
            without, _ = self._attempt(given[:number] + given[number + 1 :], tools, options)
        except ValueError:
            return False
        return without.text == shown.text

    def _attempt(
        self,
        given: Sequence[messages_lib.Message],
        tools: Sequence[Any],
        options: Mapping[str, Any],
    ) -> tuple[shadows.Shown, list[str]]:
        """What the template makes of it, and names of what it does not show."""
        try:
            return self._rendered(given, tools, **options)
        except ValueError:
            if not any("tool_calls" in message for message in given):
                raise
            return self._rendered(hidden.as_text_arguments(given), tools, **options)

    def _rendered(
        self,
        given: Sequence[messages_lib.Message],
        tools: Sequence[Any],
        *,
        template_args: Mapping[str, Any] = MappingProxyType({}),
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> tuple[shadows.Shown, list[str]]:
        hider = shadows.Shadows()
        shown = hidden.messages(given, hider, tool_formats.of_template(self.template))
        if continue_final:
            shown[-1]["content"] += MARK
        variables = {
            "messages": shown,
            "tools": hidden.tools(tools, hider),
            "documents": None,  # templates ask whether there are any
            "add_generation_prompt": add_generation_prompt,
        }
        taken = sorted(variables.keys() & template_args.keys())
        if taken:
            raise ValueError(f"the variables {taken} of a chat template can't be set by hand")
        further = {**template_args}
        further = self._special_tokens | {name: self._visible(further[name], hider)
                                          for name in further}  # fmt: skip
        try:
            text = self._template(tools).render(further | variables)
        # A template is a program of others: wrong messages end it in many ways.
        except (
            jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError,
            ArithmeticError, RecursionError,
        ) as error:  # fmt: skip
            raise ValueError(
                f"{self._where}: the chat template refuses these messages: {error}"
            ) from error
        return hider.reveal(self._until_mark(text) if continue_final else text)

    def _visible(self, value: Any, hider: shadows.Shadows) -> Any:
        """A variable of the template, which may ask for it; control tokens in it are hidden."""
        if isinstance(value, str):
            spells = any(name in value for name in self.encoder.control)
            odd = any(ord(one) >= shadows.FIRST for one in value)
            return hider.hide(value, shadows.CONTENT) if spells or odd else value
        if isinstance(value, Mapping):
            return {
                self._visible(key, hider): self._visible(one, hider) for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._visible(one, hider) for one in value]
        return value

    def _until_mark(self, text: str) -> str:
        before, mark, _ = text.partition(MARK)
        if not mark:
            raise ValueError(
                f"{self._where}: the chat template does not show the last message as it is, so it "
                "cannot be continued"
            )
        return before

    def closing_ids(self) -> tuple[int, ...]:
        """The control token that the template writes at the end of an assistant's turn."""
        said = {"role": "assistant", "content": "ok"}
        for later in ([], [_ASKED]):  # some templates close no turn: the next speaker's name does
            try:
                shown, _ = self._attempt([_ASKED, said, *later], [], _FINISHED)
            except ValueError:
                continue
            places = np.flatnonzero(shown.origins == shadows.SAID)
            if not len(places):
                continue
            behind = shown[int(places[-1]) + 1 :]
            template_only = behind[: next(iter(np.flatnonzero(behind.origins)), len(behind.text))]
            written = self.encoder.ids(template_only)
            # A tag that is no special token closes a part of the turn, if there is one that is.
            for closing in (self.encoder.special, self.encoder.control.values()):
                for token in written:
                    if token in closing:
                        return (token,)
        return ()

    def _template(self, tools: Sequence[Mapping[str, Any]] | None) -> jinja2.Template:
        for name in (*([TOOL_USE] if tools else []), DEFAULT):
            if name in self._templates:
                return self._templates[name]
        raise ValueError(
            f"{self._where}: there is no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); give prompts as text or token ids"
        )


def _can_continue(messages: Sequence[messages_lib.Message]) -> bool:
    return bool(messages) and isinstance(messages[-1].get("content"), str)


def _numbers(missing: Sequence[str], kind: str) -> set[int]:
    """Of the messages whose trace of this kind is missing."""
    return {int(name.partition(":")[2]) for name in missing if name.startswith(f"{kind}:")}
