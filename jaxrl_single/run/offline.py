"""What the tools that turn a file into a file share: arguments, readable errors, a summary."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from jaxrl_single.models import config
from jaxrl_single.run import command_line


def parser(description: str) -> argparse.ArgumentParser:
    """With --model, --input, --output and --dtype; a tool adds its own."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "input", "output"):
        made.add_argument(f"--{name}", required=True)
    made.add_argument("--dtype", choices=config.DTYPES, help="default: the checkpoint's own")
    return made


def run(work: Callable[[], dict[str, Any]]) -> int:
    """Prints what `work` returns as a line of JSON; returns the exit code: 0, 2 or 130."""

    def show() -> None:
        print(json.dumps(work(), allow_nan=False))

    return command_line.tool(show, for_people=(FloatingPointError,))
