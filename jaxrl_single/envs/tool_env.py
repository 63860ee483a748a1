"""Tasks to be solved with tools, in the words of a model's tool-call format.

    question      State the final answer to the following arithmetic problem: 12 + 5 - 3 =
    action        <tool_call>{"name": "calculator", "arguments": {"expression": "12+5-3"}}...
    observation   14
    action        The answer is 14.       no call, so it is the answer and ends the episode

Calls of one action are answered in their order, each by a message of its own. A call that cannot
be understood is answered by what is wrong with it, calls after it are not looked at, and the
episode goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from jaxrl_single import types
from jaxrl_single.envs import (
    answers,
    argument_types,
    base,
    tool_formats,
    tool_reading,
    user_code,
)

Check = Callable[[types.Task, str], Awaitable[float]]  # task, answer -> 0 (wrong) to 1 (right)
Reward = Callable[[types.Task, str | None, float], Awaitable[float]]  # task, answer, score ->


class Tool(Protocol):
    """Something to call, for the length of one episode.

    Attributes:
      name: by which it is called.
      schema: {"type": "function", "function": {"name", "description", "parameters"}}.
    """

    name: str
    schema: Mapping[str, Any]

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Answers one call.

        What the model did wrong is part of the answer; an exception is a failure of the tool
        itself, and makes the episode an error.

        Args:
          arguments: those that the schema requires are there, with its types.
        """
        ...

    async def close(self) -> None:
        """Frees everything; called once."""
        ...


@dataclasses.dataclass(frozen=True)
class Options:
    """How episodes go.

    Attributes:
      answer_form: where the answer is in the last message, of `answers.FORMS`.
      partial_credit: the reward is the score; otherwise 1 for a full score and 0 for less.
      tools_enabled: False answers every call by an error.
      max_output: characters of an answer to a call; the middle of longer ones is left out.
      role: who answers a call, of `chat.ROLES`; empty = as the tool format has it.
    """

    answer_form: str = "text"
    partial_credit: bool = False
    tools_enabled: bool = True
    max_output: int = 2000
    role: str = ""


class ToolEnv:
    """The environment; see the module for the dialogue."""

    gives_success = True

    def __init__(
        self,
        *,
        make_tools: Callable[[int], Sequence[Tool]],
        tool_format: tool_formats.Format,
        check: Check,
        options: Options,
        reward: Reward | None = None,
        name: str = "tools",
    ):
        """Makes an environment for one episode.

        Args:
          make_tools: seed of the episode -> its tools.
          tool_format: in which the model writes calls.
          check: judges the answer; its exceptions are failures of the judgement.
          reward: gives the reward of the episode, from the answer (None where there is none) and
            its score; None = the score, see `Options.partial_credit`.
          name: recorded in each trajectory.
        """
        self._reward = reward
        self.name = name
        self._make_tools = make_tools
        self._format = tool_format
        self._check = check
        self._options = options
        self._tools: dict[str, Tool] = {}

    async def reset(self, task: types.Task, seed: int) -> str:
        """Returns the question."""
        self._task = task
        self._tools = {tool.name: tool for tool in self._make_tools(seed)}
        return task.question

    async def step(self, action: str) -> base.StepResult:
        """Runs the calls of an action; an action without calls is the answer and is judged."""
        schemas = [tool.schema for tool in self._tools.values()]
        parsed = await tool_reading.parse(self._format, action, schemas)
        if parsed.calls or parsed.error is not None:
            told = [await self._run(call) for call in parsed.calls]
            if parsed.error is not None:
                told.append(f"error: {parsed.error}")
            return self._answer_calls(tuple(told))
        answer = answers.extract(parsed.text, self._options.answer_form)
        return await self.judge(answer)

    async def judge(self, answer: str | None) -> base.StepResult:
        """The end of an episode with this answer; None = there is none.

        Raises:
          base.RewardError: the answer check or the reward failed.
        """
        score = 0.0 if answer is None else await self._score(answer)
        success = score >= 1
        reward = score if self._options.partial_credit else float(success)
        if self._reward is not None:
            with self._judging(answer):
                reward = _finite(await self._reward(self._task, answer, score))
        return base.StepResult("", reward, terminated=True, info={"success": success})

    async def close(self) -> None:
        """Closes the tools, all of them even if one fails."""
        failures = []
        while self._tools:
            _, tool = self._tools.popitem()
            try:
                await tool.close()
            except BaseException as error:
                if user_code.is_ours(error):
                    raise
                failures.append(error)
        if failures:
            raise failures[0]

    def _answer_calls(self, texts: tuple[str, ...]) -> base.StepResult:
        shown = [user_code.shorten(text, self._options.max_output) for text in texts]
        observation = tuple(self._format.answer(text) for text in shown)
        role = self._options.role or self._format.role
        return base.StepResult(observation, info={"success": False}, role=role)

    async def _run(self, call: tool_formats.Call) -> str:
        if not self._options.tools_enabled:
            return "error: the tools are switched off"
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name!r}; there are {sorted(self._tools)}"
        parameters = tool.schema["function"]["parameters"]
        arguments = _named(parameters, call.arguments)
        fault = _fault(parameters, arguments)
        if fault is not None:
            return f"error: {call.name}: {fault}"
        try:
            said = await tool.call(arguments)
        except BaseException as error:
            if user_code.is_ours(error):
                raise
            raise base.ToolError(f"{call.name}: {user_code.line(error)}") from error
        if not isinstance(said, str):
            raise base.ToolError(f"{call.name}: gave a {type(said).__name__}, expected a str")
        return said

    async def _score(self, answer: str) -> float:
        with self._judging(answer):
            return _fraction(await self._check(self._task, answer))

    @contextlib.contextmanager
    def _judging(self, answer: str | None) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if user_code.is_ours(error):
                raise
            raise base.RewardError(
                f"the answer {(answer or '')[:200]!r} to task {self._task.id!r} can't be judged: "
                f"{user_code.line(error)}"
            ) from error


def _finite(reward: Any) -> float:
    sound = isinstance(reward, numbers.Real) and not isinstance(reward, bool)
    if not sound or not abs(reward) <= types.MAX_REWARD:
        raise ValueError(
            f"the reward is {user_code.shorten(repr(reward), 80)}, expected a finite number, at "
            f"most {types.MAX_REWARD:g} to either side of 0"
        )
    return float(reward)


def _fraction(score: Any) -> float:
    if not isinstance(score, numbers.Real) or not 0 <= score <= 1:
        raise ValueError(f"the score is {user_code.shorten(repr(score), 80)}, expected 0 to 1")
    return float(score)


def _named(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some formats give one unnamed text: it is the argument of a tool that has only one."""
    required = parameters.get("required", ())
    if len(required) == 1 and set(arguments) == {tool_formats.REACT_ARGUMENT}:
        return {required[0]: arguments[tool_formats.REACT_ARGUMENT]}
    return arguments


def _fault(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with the arguments of a call, for the model; None when nothing is."""
    known = parameters["properties"]
    missing = [name for name in parameters.get("required", ()) if name not in arguments]
    unknown = [name for name in arguments if name not in known]
    if missing or unknown:
        return f"the arguments are {sorted(arguments)}, expected {sorted(known)}"
    for name, value in arguments.items():
        names = argument_types.declared(known[name])
        if not argument_types.fits(value, names):
            return f"{name} is {value!r}, must be of type {' or '.join(dict.fromkeys(names))}"
    return None
