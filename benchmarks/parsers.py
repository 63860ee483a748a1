"""Milliseconds that reading a message takes, for hostile texts of 1k, 10k and 100k characters.

    python benchmarks/parsers.py          the worst text of each format
    python benchmarks/parsers.py --all    every text

All of them but the row `answers` (the forms of envs/answers.py) read calls of tools.
"""

import argparse
import time
from collections.abc import Callable

from jaxrl_single.envs import answers, tool_formats

LENGTHS = (1_000, 10_000, 100_000)
MOST_MS = 50.0
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "python",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
        },
    }
]
REPEATED = {
    "nested lists": "[",
    "nested objects": '{"a":',
    "nested calls": '{"name": ',
    "objects": '{"name":1} ',
    "digits": "9",
    "blanks": " ",
    "lines": "\n",
    "quotes": '"',
    "surrogates": "\ud800",
    "thoughts begin": "<think>",
    "thoughts end": "</think>",
    "thoughts": "<think></think>",
    "thoughts of calls": "<think><tool_call>{</think>",
    "calls begin": "<tool_call>",
    "calls end": "</tool_call>",
    "functions": "<function=f>",
    "functions end": "</function>",
    "parameters": "<parameter=a>",
    "keys": "<arg_key>",
    "values": "<arg_key>a</arg_key><arg_value>",
    "actions": "Action:",
    "action lines": "Action: f\n",
    "inputs": "Action: f\nAction Input: x\n",
    "fences": "```py",
    "fence lines": "```python\n",
    "blocks": "```python\n```\n",
    "answers begin": "<answer>",
    "answers": "<answer></answer>",
    "boxes": "\\boxed{",
    "numbers": "1e1",
    "commas": "1,",
}
BEGUN = {
    "hermes": '<tool_call>{"name": "python", "arguments": {"code": ',
    "qwen3_coder": "<tool_call>\n<function=python>\n<parameter=code>",
    "llama3": '{"name": "python", "parameters": {"code": ',
    "glm": "<tool_call>python<arg_key>code</arg_key><arg_value>",
    "react": "Action: python\nAction Input: ",
    "code": "```python\n",
}


def texts(style: str, length: int) -> dict[str, str]:
    """Hostile texts, alone, within a call, behind an open call, and as calls without end."""
    begun = BEGUN.get(style, "<answer>")
    found = {}
    for name, piece in REPEATED.items():
        many = piece * (length // len(piece))
        found[name] = many
        found[f"{name}, in a call"] = (begun + many)[:length]
        found[f"a tag, {name}, x"] = f"<tool_call>\n<function=python>{many}"[:length] + "x"
    call = tool_formats.Call("python", {"code": "x"})
    if style in tool_formats.FORMATS:
        written = tool_formats.FORMATS[style].render(call) + "\n"
        found["good calls"] = written * (length // len(written))
        found["one long call"] = tool_formats.FORMATS[style].render(
            tool_formats.Call("python", {"code": 'print("x")\n' * (length // 13)})
        )
    return found


def milliseconds(style: str, text: str) -> float:
    """The slower of readings with and without a schema, or of the forms of answers."""
    if style not in tool_formats.FORMATS:
        return max(_timed(answers.extract, text, form) for form in answers.FORMS)
    return max(_timed(tool_formats.FORMATS[style].parse, text, tools) for tools in (TOOLS, ()))


def _timed(function: Callable[..., object], *arguments: object) -> float:
    """The best of two, for other processes may have the machine meanwhile."""
    found = []
    for _ in range(2):
        started = time.perf_counter()
        function(*arguments)
        found.append(1e3 * (time.perf_counter() - started))
    return min(found)


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="every text, not the worst alone")
    every = parser.parse_args().all
    print(f"{'format':12} {'text':34} " + " ".join(f"{length:>9,}" for length in LENGTHS))
    slowest = 0.0
    for style in (*tool_formats.FORMATS, "answers"):
        measured = [
            {name: milliseconds(style, text) for name, text in texts(style, length).items()}
            for length in LENGTHS
        ]
        ordered = sorted(measured[-1], key=lambda name: -measured[-1][name])
        for name in ordered if every else ordered[:1]:
            row = " ".join(f"{found[name]:9.2f}" for found in measured)
            print(f"{style:12} {name:34} {row}")
        slowest = max(slowest, measured[-1][ordered[0]])
    print(f"slowest: {slowest:.1f} ms, allowed {MOST_MS:.0f}")


if __name__ == "__main__":
    main()
