"""Python as a tool: code runs in a sandbox, in an interpreter that lives as long as the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_single.envs import tool_formats
from jaxrl_single.envs.sandbox import pool as pool_lib

_DIED = (
    "[the interpreter was ended: it used too much memory or CPU time, crashed, or ended itself; "
    "all variables are lost]"
)


class PythonTool:
    """`python(code)`; variables live from call to call."""

    name = tool_formats.CODE_TOOL
    schema: Mapping[str, Any] = {
        "type": "function",
        "function": {
            "name": tool_formats.CODE_TOOL,
            "description": (
                "Runs Python code and returns what it prints. Variables stay for the next call. "
                "There is no network."
            ),
            "parameters": {
                "type": "object",
                "properties": {
                    tool_formats.CODE_ARGUMENT: {"type": "string", "description": "The code."}
                },
                "required": [tool_formats.CODE_ARGUMENT],
            },
        },
    }

    def __init__(self, pool: pool_lib.Pool, *, seed: int, timeout_s: float):
        """Makes the tool of one episode; its interpreter starts with the first call.

        Args:
          seed: of the module `random` in there.
          timeout_s: of one call, by the clock.
        """
        self._python = pool_lib.Interpreter(pool, seed)
        self._timeout_s = timeout_s

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """What the code printed, its traceback if it failed, and why it was stopped if it was.

        Raises:
          sandbox.pool.SandboxError: there is no interpreter to be had.
        """
        result = await self._python.run(arguments[tool_formats.CODE_ARGUMENT], self._timeout_s)
        parts = [result.output.rstrip("\n"), result.error]
        if result.outcome == "timeout":
            lost = "" if result.kept else "; all variables are lost"
            parts.append(f"[stopped after {self._timeout_s:g} seconds{lost}]")
        elif result.outcome == "died":
            parts.append(_DIED)
        return "\n".join(part for part in parts if part) or "[no output]"

    async def close(self) -> None:
        """Ends the interpreter."""
        await self._python.close()
