"""A scripted player of arithmetic tasks with a tool, right or with natural mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_single import types
from jaxrl_single.envs import answers, calculator_tool, tool_formats

_NUMBER = re.compile(r"\d+")
_OPERATOR = re.compile(r"(?<=[\d)])\s*[-+*/]")


class ArithmeticScript:
    """Plays one episode: a call with the expression of the task, then the answer.

    At each action, with the chance `mistake_rate`, one of the mistakes that fit is made: a wrong
    digit, a wrong operator, a missing term, an answer without a call, or a call that nobody
    understands; or at the end a wrong digit or some other number. It goes on from what the tool
    really said; only after an error it repeats the action, then correctly.
    """

    def __init__(
        self,
        task: types.Task,
        *,
        mistake_rate: float,
        rng: np.random.Generator,
        make_call: Callable[[str], tool_formats.Call],
        tool_format: tool_formats.Format,
        answer_form: str,
    ):
        """Reads the task.

        Args:
          task: its data holds "expression".
          mistake_rate: chance of a mistake at each action, 0 to 1.
          rng: draws the mistakes.
          make_call: expression -> the call that computes it.
          tool_format: how the call is written.
          answer_form: how the answer is said, of `answers.FORMS`.

        Raises:
          ValueError: the task has no expression, or the rate is out of range.
        """
        if not 0 <= mistake_rate <= 1:
            raise ValueError(f"mistake_rate is {mistake_rate}, allowed is 0 to 1")
        if not isinstance(task.data.get("expression"), str):
            raise ValueError(
                f"task {task.id!r} has no expression, which the script of arithmetic tasks plays; "
                "choose such a dataset (chain_sum, basic_arithmetic) or set warm_start.num_steps=0"
            )
        self._expression = task.data["expression"]
        self._answer = task.answer
        self._mistake_rate = mistake_rate
        self._rng = rng
        self._make_call = make_call
        self._format = tool_format
        self._form = answer_form
        self._called = False

    async def act(self, observation: str) -> str:
        """The next action, as text.

        Args:
          observation: what the environment said last; the question at the first call.
        """
        failed = self._called and observation.startswith("error")
        careful = failed or self._rng.random() >= self._mistake_rate
        if not self._called or failed:
            self._called = True
            return self._call(self._expression) if careful else self._wrong_call()
        result = observation.strip()
        return answers.phrase(result if careful else self._wrong_number(result), self._form)

    def _call(self, expression: str) -> str:
        return self._format.render(self._make_call(expression))

    def _wrong_call(self) -> str:
        right = self._call(self._expression)
        options = [
            self._call(self._slipped(self._expression)),
            answers.phrase(self._wrong_number(self._answer), self._form),
            right[: len(right) * 2 // 3],
        ]
        operators = list(_OPERATOR.finditer(self._expression))
        if operators:
            one = operators[int(self._rng.integers(len(operators)))]
            others = [sign for sign in "+-*" if sign not in one.group()]
            sign = others[int(self._rng.integers(len(others)))]
            end = one.end()
            options.append(
                self._call(f"{self._expression[: end - 1]}{sign}{self._expression[end:]}")
            )
            shorter = self._expression[: operators[-1].start()]
            if shorter.count("(") == shorter.count(")"):
                options.append(self._call(shorter))
        return _pick(self._rng, options)

    def _wrong_number(self, right: str) -> str:
        others = [number for number in _NUMBER.findall(self._expression) if number != right]
        return _pick(self._rng, [self._slipped(right), *others[:1]])

    def _slipped(self, text: str) -> str:
        """Changes one digit of the text, if it has one."""
        places = [place for place, character in enumerate(text) if character.isdecimal()]
        if not places:
            return text
        place = places[int(self._rng.integers(len(places)))]
        first_of_many = place + 1 in places and place - 1 not in places
        digits = [d for d in "0123456789"[first_of_many:] if d != text[place]]
        return text[:place] + _pick(self._rng, digits) + text[place + 1 :]


def calculator_call(expression: str) -> tool_formats.Call:
    """The call of the calculator that computes an expression."""
    tool = calculator_tool.CalculatorTool
    return tool_formats.Call(tool.name, {tool.parameter: expression})


def python_call(expression: str) -> tool_formats.Call:
    """The call of the Python tool that prints the value of an expression."""
    return tool_formats.Call(
        tool_formats.CODE_TOOL, {tool_formats.CODE_ARGUMENT: f"print({expression})"}
    )


CALLS = {calculator_tool.CalculatorTool.name: calculator_call, tool_formats.CODE_TOOL: python_call}


def _pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]
