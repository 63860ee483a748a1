"""What the model is told before the first question: the system message and the tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class PromptSpec:
    """The part of a conversation that is the same in every episode.

    Attributes:
      system: text of the system message; empty = there is none, or the template's own.
      tools: JSON schemas of functions, for the chat template: {"type": "function", "function":
        {"name", "description", "parameters"}}.
    """

    system: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
