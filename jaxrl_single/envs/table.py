"""THE table of environments: a name to what a run needs of it.

One's own environment needs no entry here: `--config.env.name=package.module:factory`, where
`factory()` returns an `EnvSpec`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from jaxrl_single import types
from jaxrl_single.envs import (
    base,
    calculator,
    calculator_script,
    chat,
    own_code,
    prompt,
    tasks_file,
    tool_table,
    user_code,
)

Section = dict[str, Any]  # the `env` section of the config as a plain dict


class Script(Protocol):
    """A scripted player of one episode."""

    async def act(self, observation: str) -> str:
        """The next action, given what the environment said last."""
        ...


class MakeScript(Protocol):
    """Makes the player of one task; `rng` draws its mistakes."""

    def __call__(
        self, task: types.Task, *, mistake_rate: float, rng: np.random.Generator
    ) -> Script: ...


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What a run needs of an environment.

    Attributes:
      make_env: section -> a function that makes the environment of one episode.
      make_tasks: section, split ("train" or "eval"), seed -> tasks with random access; no
        question may be in both splits.
      make_chat: the language of the episodes, for models that bring no tokenizer of their own.
      make_script: section -> a function that makes scripted players for demonstrations, or None if
        these options leave none; or None.
      make_prompt: section -> what a model with a chat template is told first; or None for nothing.
      notice: section -> a line that people should read before a run starts, or an empty one.
      trial: section, the first task -> tries what the section names, once; ValueError if it fails.
    """

    make_env: Callable[[Section], Callable[[], base.Env]]
    make_tasks: Callable[[Section, str, int], Sequence[types.Task]]
    make_chat: Callable[[], chat.Chat]
    make_script: Callable[[Section], MakeScript | None] | None = None
    make_prompt: Callable[[Section], prompt.PromptSpec] | None = None
    notice: Callable[[Section], str] = lambda section: ""
    trial: Callable[[Section, types.Task], None] = lambda section, task: None


def get(name: str) -> EnvSpec:
    """Looks an environment up.

    Args:
      name: a key of `ENVS`, or "package.module:factory".

    Raises:
      ValueError: there is no such environment; the message says what is allowed or what failed.
    """
    if ":" in name:
        return _load(name)
    if name not in ENVS:
        raise ValueError(
            f"env.name is {name!r}; known are {sorted(ENVS)}, "
            "or give your own as 'package.module:factory'"
        )
    return ENVS[name]


def _load(name: str) -> EnvSpec:
    factory = own_code.load(name, "env.name")
    try:
        spec = factory()
    except Exception as error:
        raise ValueError(
            f"env.name is {name!r}, and calling it failed: {user_code.place(error)}"
        ) from error
    if not isinstance(spec, EnvSpec):
        raise ValueError(
            f"env.name is {name!r}, and it returned a {type(spec).__name__}; "
            "expected jaxrl_single.envs.table.EnvSpec"
        )
    return spec


def _make_calculator(section: Section) -> Callable[[], base.Env]:
    options = {
        key: section[key] for key in ("tool_enabled", "tool_latency_s", "tool_latency_spread")
    }
    if options["tool_latency_s"] < 0 or not 0 <= options["tool_latency_spread"] <= 1:
        raise ValueError(
            f"env.tool_latency_s is {options['tool_latency_s']} and env.tool_latency_spread is "
            f"{options['tool_latency_spread']}; allowed are >= 0 and 0 to 1"
        )
    return lambda: calculator.Calculator(**options)


def _make_calculator_tasks(section: Section, split: str, seed: int) -> Sequence[types.Task]:
    if section["tasks_file"] or section["eval_tasks_file"]:
        return _read_calculator_tasks(section, split, chat.CharChat.build())
    return calculator.CalculatorTasks(
        split,
        num_operations=section["num_operations"],
        num_digits=section["num_digits"],
        max_result=section["max_result"],
        operators=section["operators"],
        seed=seed,
    )


def _read_calculator_tasks(
    section: Section, split: str, language: chat.CharChat
) -> list[types.Task]:
    def check(task: types.Task) -> None:
        language.prompt(task.question)
        language.observation(task.answer)

    files = section["tasks_file"], section["eval_tasks_file"]
    return tasks_file.read_split(*files, split, check=check)


ENVS: dict[str, EnvSpec] = {
    "calculator": EnvSpec(
        make_env=_make_calculator,
        make_tasks=_make_calculator_tasks,
        make_chat=chat.CharChat.build,
        make_script=lambda section: calculator_script.CalculatorScript,
    ),
    "tools": EnvSpec(
        make_env=tool_table.make_env,
        make_tasks=tool_table.make_tasks,
        make_chat=tool_table.make_chat,
        make_script=tool_table.make_script,
        make_prompt=tool_table.make_prompt,
        notice=tool_table.notice,
        trial=tool_table.trial,
    ),
}
