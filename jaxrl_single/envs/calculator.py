"""The calculator agent: an expression that needs one tool call per operation, then an answer.

    question      (37+58)*46
    action        <call>37+58
    observation   95
    action        <call>95*46
    observation   4370
    action        <answer>4370       ends the episode, reward 1 when right, else 0

The tool computes one operation of two integers. Anything else that the agent says is answered by
`error` and the episode goes on.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence

from jaxrl_single import types
from jaxrl_single.envs import base, expression, splits

ERROR = "error"  # the observation after a call that the tool does not understand
CALL = "<call>"
ANSWER = "<answer>"
_MAX_DRAWS = 10_000  # of questions, until one falls into the split
# Twelve digits hold every result of generated questions squared; the limit bounds observations.
_CALL = re.compile(CALL + r"(-?[0-9]{1,12})([-+*])(-?[0-9]{1,12})")


class Calculator:
    """The environment; see the module for the dialogue."""

    name = "calculator"
    gives_success = True

    def __init__(
        self,
        *,
        tool_enabled: bool = True,
        tool_latency_s: float = 0.0,
        tool_latency_spread: float = 0.0,
    ):
        """Makes an environment for one episode.

        Args:
          tool_enabled: False makes every call an error.
          tool_latency_s: mean time that a call takes, seconds.
          tool_latency_spread: a call takes uniformly (1 - spread) to (1 + spread) of that.
        """
        self._tool_enabled = tool_enabled
        self._latency_s = tool_latency_s
        self._spread = tool_latency_spread

    async def reset(self, task: types.Task, seed: int) -> str:
        """Returns the question."""
        self._answer = task.answer.strip()
        self._random = random.Random(seed)
        return task.question

    async def step(self, action: str) -> base.StepResult:
        """Answers a call, judges an answer, and calls everything else an error."""
        if action.startswith(ANSWER):
            success = action.removeprefix(ANSWER).strip() == self._answer
            return base.StepResult("", float(success), terminated=True, info={"success": success})
        call = _CALL.fullmatch(action)
        if action.startswith(CALL) and self._latency_s > 0:
            spread = self._random.uniform(-self._spread, self._spread)
            await asyncio.sleep(self._latency_s * (1 + spread))
        observation = ERROR
        if call and self._tool_enabled:
            left, operator, right = call.groups()
            observation = str(expression.apply(operator, int(left), int(right)))
        return base.StepResult(observation, info={"success": False})

    async def close(self) -> None:
        """Holds nothing."""


class CalculatorTasks(Sequence[types.Task]):
    """Generated questions with random access; the same index gives the same task for ever.

    A question's hash decides its split, so a question of one split never occurs in the other,
    whatever the seeds. Within a split questions may repeat. All results are >= 0 and at
    most `max_result`; operands have `num_digits` digits, fewer only where that bound asks for it.
    """

    def __init__(
        self,
        split: str,
        *,
        num_operations: int,
        num_digits: int,
        max_result: int,
        operators: str,
        seed: int,
    ):
        """Fixes the distribution of the questions.

        Raises:
          ValueError: an argument out of its range; the message says which is allowed.
        """
        if split not in types.SPLITS:
            raise ValueError(f"split is {split!r}, allowed are {types.SPLITS}")
        if num_operations < 1 or not 1 <= num_digits <= 5:
            raise ValueError(
                f"env.num_operations is {num_operations} and env.num_digits is {num_digits}; "
                "allowed are num_operations >= 1 and 1 <= num_digits <= 5"
            )
        if max_result < 10**num_digits - 1:
            raise ValueError(
                f"env.max_result is {max_result} with env.num_digits {num_digits}; "
                f"it must hold any operand, so at least {10**num_digits - 1}"
            )
        if not operators or set(operators) - set(expression.OPERATORS):
            raise ValueError(
                f"env.operators is {operators!r}; "
                f"it must be a non-empty choice of {expression.OPERATORS!r}"
            )
        self._split = split
        self._num_operations = num_operations
        self._num_digits = num_digits
        self._max_result = max_result
        self._operators = operators
        self._seed = seed

    def __len__(self) -> int:
        return splits.SIZES[self._split]

    def __getitem__(self, index: int) -> types.Task:
        if not 0 <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        for draw in range(_MAX_DRAWS):
            rng = random.Random(f"{self._seed}/{self._split}/{index}/{draw}")
            question, answer = self._draw(rng)
            if splits.split_of(question) == self._split:
                task_id = f"calculator/{self._split}/{index}"
                return types.Task(id=task_id, question=question, answer=str(answer))
        raise ValueError(
            f"no question of the {self._split} split among {_MAX_DRAWS} draws; "
            "raise env.num_operations or env.num_digits, or allow more env.operators"
        )

    def _draw(self, rng: random.Random) -> tuple[str, int]:
        """A left-deep expression: each operation uses the result of the one before."""
        low = 10 ** (self._num_digits - 1)
        high = 10**self._num_digits - 1
        result = rng.randint(low, high)
        text = str(result)
        for number in range(self._num_operations):
            caps = {sign: self._largest_operand(sign, result) for sign in self._operators}
            fitting = [operator for operator in self._operators if caps[operator] >= low]
            operator = rng.choice(fitting or list(self._operators))
            operand = rng.randint(min(low, caps[operator]), min(high, caps[operator]))
            text = f"({text}){operator}{operand}" if number else f"{text}{operator}{operand}"
            result = expression.apply(operator, result, operand)
        return text, result

    def _largest_operand(self, operator: str, result: int) -> int:
        """What may follow `result operator` so that 0 <= the next result <= max_result."""
        if operator == "+":
            return self._max_result - result
        if operator == "-":
            return result
        return self._max_result // max(result, 1)
