"""A scripted player of the calculator, right or with natural mistakes: for demonstrations."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from jaxrl_single import types
from jaxrl_single.envs import calculator, expression

_NUMBER = re.compile(r"-?[0-9]+")


class CalculatorScript:
    """Plays one episode: calls in the order of the expression, then the answer.

    At each action, with the chance `mistake_rate`, one of the mistakes that fit is made: a wrong
    digit, a wrong operator, an old number instead of the last result, an answer too early, or
    words that the tool does not understand. It goes on from what the tool really said, so most
    mistakes end in a wrong answer; only after `error` it repeats the action, then correctly.
    """

    def __init__(self, task: types.Task, *, mistake_rate: float, rng: np.random.Generator):
        """Reads the question.

        Args:
          task: its question is an expression of `envs/expression.py`.
          mistake_rate: chance of a mistake at each action, 0 to 1.
          rng: draws the mistakes.

        Raises:
          ValueError: the question is no such expression, or the rate is out of range.
        """
        if not 0 <= mistake_rate <= 1:
            raise ValueError(f"mistake_rate is {mistake_rate}, allowed is 0 to 1")
        self._operations = expression.parse(task.question)
        self._numbers = _NUMBER.findall(task.question.replace("-", " "))
        self._mistake_rate = mistake_rate
        self._rng = rng
        self._results: list[str] = []
        self._calling = False

    async def act(self, observation: str) -> str:
        """The next action, as text.

        Args:
          observation: what the environment said last; the question at the first call.
        """
        failed = observation == calculator.ERROR
        if self._calling and not failed:
            self._results.append(observation)
        self._calling = len(self._results) < len(self._operations)
        careful = failed or self._rng.random() >= self._mistake_rate
        if self._calling:
            return self._call(careful)
        return self._answer(careful)

    def _call(self, careful: bool) -> str:
        operation = self._operations[len(self._results)]
        left = self._operand(operation.left, operation.left_is_result)
        right = self._operand(operation.right, operation.right_is_result)
        if careful:
            return _call(left, operation.operator, right)
        others = [sign for sign in expression.OPERATORS if sign != operation.operator]
        wrong = [
            _call(_slip(left, self._rng), operation.operator, right),
            _call(left, operation.operator, _slip(right, self._rng)),
            _call(left, _pick(self._rng, others), right),
            calculator.ANSWER + (self._results[-1] if self._results else left),
            _garble(left, operation.operator, right, self._rng),
        ]
        if operation.left_is_result:
            wrong.append(_call(self._old_number(left), operation.operator, right))
        if operation.right_is_result:
            wrong.append(_call(left, operation.operator, self._old_number(right)))
        return _pick(self._rng, wrong)

    def _answer(self, careful: bool) -> str:
        result = self._results[-1]
        if careful:
            return calculator.ANSWER + result
        wrong = [
            calculator.ANSWER + _slip(result, self._rng),
            calculator.ANSWER + self._old_number(result),
            result,  # without the marker, which is an error
        ]
        return _pick(self._rng, wrong)

    def _operand(self, value: int, is_result: bool) -> str:
        return self._results[value] if is_result else str(value)

    def _old_number(self, right_one: str) -> str:
        """Some number seen before; if there is no other one, the right one with a slip."""
        seen = [number for number in self._numbers + self._results if number != right_one]
        return _pick(self._rng, seen) if seen else _slip(right_one, self._rng)


def _call(left: str, operator: str, right: str) -> str:
    return f"{calculator.CALL}{left}{operator}{right}"


def _garble(left: str, operator: str, right: str, rng: np.random.Generator) -> str:
    """A call that no calculator understands."""
    return _pick(
        rng,
        [
            f"{calculator.CALL}{left}{operator}",
            f"{calculator.CALL}{operator}{right}",
            f"{calculator.CALL}{left}{operator}+{right}",
            f"{calculator.CALL}({left}{operator}{right}",
            f"{left}{operator}{right}",
        ],
    )


def _slip(number: str, rng: np.random.Generator) -> str:
    """Changes one digit; the result has as many digits and differs."""
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    place = int(rng.integers(len(digits)))
    first_of_many = place == 0 and len(digits) > 1  # no leading zero
    options = [d for d in "0123456789"[first_of_many:] if d != digits[place]]
    return sign + digits[:place] + _pick(rng, options) + digits[place + 1 :]


def _pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]
