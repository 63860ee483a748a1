"""Reading calls on an event loop: long messages go to a process of their own, by the clock.

Reading takes linear time, about 30 ms for MAX_LENGTH characters; longer messages would hold up all
other episodes, or answers, for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_single.envs import tool_formats

MAX_LENGTH = 100_000  # characters that are read right away
TIMEOUT_S = 20.0  # of a longer one, the start of the process included


async def parse(
    style: tool_formats.Format,
    text: str,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    thinking: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> tool_formats.Parsed:
    """As `Format.parse`; a message that takes too long has an error, in words for the model."""
    if len(text) <= MAX_LENGTH:
        return style.parse(text, tools, thinking=thinking)
    name = next(name for name, known in tool_formats.FORMATS.items() if known is style)
    asked = json.dumps([name, text, list(tools), thinking]).encode()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jaxrl_single.envs.tool_reading"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        answer, _ = await asyncio.wait_for(process.communicate(asked), timeout_s)
    except TimeoutError:
        return _unread(text)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        return _unread(text)
    found = json.loads(answer)
    calls = tuple(tool_formats.Call(**call) for call in found.pop("calls"))
    spans = tuple(map(tuple, found.pop("spans")))
    return tool_formats.Parsed(calls, **found, spans=spans)


def _unread(text: str) -> tool_formats.Parsed:
    return tool_formats.Parsed(
        (), "", f"a message of {len(text)} characters is too long to be read; write less", start=0
    )


def _main() -> None:
    name, text, tools, thinking = json.load(sys.stdin)
    found = tool_formats.get(name).parse(text, tools, thinking=thinking)
    json.dump(dataclasses.asdict(found), sys.stdout)


if __name__ == "__main__":
    _main()
