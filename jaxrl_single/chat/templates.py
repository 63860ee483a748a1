"""Chat templates (Jinja), with what transformers lets them do and see. No jax."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from jaxrl_single.chat import shadows


class Json(dict):
    """An object that a template may print: as JSON, where Python would write its own form."""

    def __repr__(self) -> str:
        return to_json(self)

    __str__ = __repr__


class JsonList(list):
    """A list that a template may print, see `Json`."""

    def __repr__(self) -> str:
        return to_json(self)

    __str__ = __repr__


def compiled(source: str, where: str, now: datetime.datetime | None) -> jinja2.Template:
    """A chat template.

    Args:
      where: it comes from, for messages.
      now: the time that it shows; None = the present.

    Raises:
      ValueError: it is not in order.
    """
    if any(ord(character) >= shadows.FIRST for character in source):
        raise ValueError(f"{where}: it holds characters of private planes of Unicode")
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.filters["trim"] = lambda text, chars=None: shadows.strip(str(text), "strip", chars)
    environment.filters["dictsort"] = _dictsort
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: (now or datetime.datetime.now()).strftime(
        form
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"{where}, line {error.lineno}: {error.message}") from error


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter writes < > & ' for HTML. Hidden texts stay unescaped."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:
        text = "".join(
            json.dumps(one)[1:-1] if 0x7F < ord(one) < shadows.FIRST else one for one in text
        )
    return shadows.escape_json(text)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox; stripping a text also strips blanks that are hidden in it."""

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name in ("strip", "lstrip", "rstrip"):
            return shadows.strip(owner, name, *args)
        return super().call(__context, __obj, *args, **kwargs)


class _Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, which marks for training what it contains."""

    tags = frozenset({"generation"})

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _dictsort(
    value: Mapping[str, Any], case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[tuple[str, Any]]:
    """Jinja's filter, to which hidden texts are the texts that they hide."""

    def order(item: tuple[str, Any]) -> Any:
        one = item[0 if by == "key" else 1]
        if not isinstance(one, str):
            return one
        return shadows.clear(one) if case_sensitive else shadows.clear(one).lower()

    return sorted(value.items(), key=order, reverse=reverse)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
