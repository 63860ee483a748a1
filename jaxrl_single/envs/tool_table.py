"""The environment `tools` of the table: the env section of a config -> tasks, tools and judge."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_single import types
from jaxrl_single.envs import (
    answer_checks,
    answers,
    arithmetic_script,
    base,
    calculator_tool,
    chat,
    own_code,
    prompt,
    python_tool,
    reasoning_gym_tasks,
    tasks_file,
    tool_env,
    tool_formats,
)
from jaxrl_single.envs.sandbox import isolation, pool
from jaxrl_single.envs.sandbox import limits as limits_lib

Section = dict[str, Any]

TOOLS = {tool.name: tool for tool in (calculator_tool.CalculatorTool, python_tool.PythonTool)}
_BY_PROGRAMS = ("dataset", "math")  # answer checks that may evaluate what they check
SCHEMAS_PLACE = "{tools}"  # in env.system_prompt


def make_env(section: Section) -> Callable[[], base.Env]:
    """A function that makes the environment of one episode.

    Raises:
      ValueError: a field of the section is out of its range.
    """
    return functools.partial(
        tool_env.ToolEnv,
        make_tools=_make_tools(section),
        tool_format=_format(section),
        check=_check(section),
        reward=_reward(section),
        options=_options(section),
        name=section["dataset"] or "tools",
    )


def make_tasks(section: Section, split: str, seed: int) -> Sequence[types.Task]:
    """Tasks of the dataset, or of the files.

    Raises:
      ValueError, OSError: no such dataset, bad options, or files that cannot be used.
    """
    has_files = bool(section["tasks_file"] or section["eval_tasks_file"])
    if has_files == bool(section["dataset"]):
        raise ValueError(
            f"env.dataset is {section['dataset']!r} and env.tasks_file is "
            f"{section['tasks_file']!r}; give one of the two"
        )
    if has_files:
        return tasks_file.read_split(section["tasks_file"], section["eval_tasks_file"], split)
    return reasoning_gym_tasks.ReasoningGymTasks(split, _dataset(section, seed), seed=seed)


def make_chat() -> chat.CharChat:
    """Printable ASCII, for models without a tokenizer of their own."""
    return chat.CharChat.build(string.printable)


def make_script(section: Section) -> Callable[..., arithmetic_script.ArithmeticScript] | None:
    """Players of arithmetic tasks, who use the first tool; None where it is another."""
    names = list(section["tools"])
    if not names or names[0] not in arithmetic_script.CALLS:
        return None
    return functools.partial(
        arithmetic_script.ArithmeticScript,
        make_call=arithmetic_script.CALLS[names[0]],
        tool_format=_format(section),
        answer_form=_options(section).answer_form,
    )


def make_prompt(section: Section) -> prompt.PromptSpec:
    """The system message and the tools.

    Schemas go to the chat template, or into the place `{tools}` of the system message, one a line:
    for templates that have no words for tools.
    """
    schemas = tuple(map(_schema, _tools(section)))
    system = section["system_prompt"]
    if SCHEMAS_PLACE in system:
        lines = "\n".join(json.dumps(schema) for schema in schemas)
        return prompt.PromptSpec(system.replace(SCHEMAS_PLACE, lines))
    return prompt.PromptSpec(system, schemas)


def notice(section: Section) -> str:
    """Which walls there are around what the model writes."""
    judged = section["answer_check"] in _BY_PROGRAMS
    if python_tool.PythonTool not in _tools(section) and not judged:
        return ""
    return isolation.notice(isolation.choose(section["sandbox"]))


def trial(section: Section, task: types.Task) -> None:
    """Calls an answer check and a reward of one's own on a task and its right answer.

    Raises:
      ValueError: one of them fails, or gives no number that it may give.
    """
    named = {f"env.{field}": section[field] for field in ("answer_check", "reward")}
    if not any(map(own_code.is_own, named.values())):
        return
    env = make_env({**section, "tools": ()})()
    try:
        asyncio.run(_try(env, task))
    except TimeoutError as error:
        raise ValueError(f"{named}: no end within {own_code.TRIAL_S:g} s on a task") from error
    except base.RewardError as error:
        raise ValueError(f"{named}, tried on a task: {error}") from error


async def _try(env: tool_env.ToolEnv, task: types.Task) -> None:
    async with asyncio.timeout(own_code.TRIAL_S):
        await env.reset(task, seed=0)
        await env.judge(task.answer)


def _reward(section: Section) -> tool_env.Reward | None:
    name = section["reward"]
    if not name:
        return None
    if not own_code.is_own(name):
        raise ValueError(f"env.reward is {name!r}, allowed are 'module:function' and ''")
    own = own_code.function(name, "env.reward", "task", "answer", "score")
    return functools.partial(own_code.call, own)


def _options(section: Section) -> tool_env.Options:
    form, role = section["answer_form"], section["observation_role"]
    if form not in answers.FORMS:
        raise ValueError(f"env.answer_form is {form!r}, allowed are {answers.FORMS}")
    if role and role not in chat.ROLES:
        raise ValueError(f"env.observation_role is {role!r}, allowed are '' and {chat.ROLES}")
    if section["tool_output_chars"] < 1:
        raise ValueError(f"env.tool_output_chars is {section['tool_output_chars']}, must be >= 1")
    return tool_env.Options(
        answer_form=form,
        partial_credit=section["partial_credit"],
        tools_enabled=section["tool_enabled"],
        max_output=section["tool_output_chars"],
        role=role,
    )


def _make_tools(section: Section) -> Callable[[int], list[tool_env.Tool]]:
    """Seed of an episode -> its tools."""
    tools = _tools(section)
    make_python = _make_python(section) if python_tool.PythonTool in tools else None

    def make(seed: int) -> list[tool_env.Tool]:
        return [
            make_python(seed=seed) if tool is python_tool.PythonTool else tool() for tool in tools
        ]

    return make


def _make_python(section: Section) -> Callable[..., python_tool.PythonTool]:
    if section["tool_timeout_s"] <= 0:
        raise ValueError(f"env.tool_timeout_s is {section['tool_timeout_s']}, must be > 0")
    limits = limits_lib.Limits(
        memory_mb=section["sandbox_memory_mb"], output_chars=section["tool_output_chars"]
    )
    chosen = isolation.choose(section["sandbox"])
    isolation.announce(chosen)
    interpreters = pool.Pool(chosen, limits)
    atexit.register(interpreters.close)
    timeout_s = float(section["tool_timeout_s"])
    return functools.partial(python_tool.PythonTool, interpreters, timeout_s=timeout_s)


def _tools(section: Section) -> list[Callable[..., tool_env.Tool]]:
    names = list(section["tools"])
    unknown = [name for name in names if name not in TOOLS and not own_code.is_own(name)]
    if unknown or len(set(names)) != len(names):
        raise ValueError(
            f"env.tools is {tuple(names)}; allowed are {sorted(TOOLS)} and your own as "
            "'module:function', each once"
        )
    found = [own_code.tool(name) if own_code.is_own(name) else TOOLS[name] for name in names]
    called = [_schema(tool)["function"]["name"] for tool in found]
    if len(set(called)) != len(called):
        raise ValueError(f"env.tools is {tuple(names)}; two of them have the name in {called}")
    return found


def _schema(tool: Callable[..., tool_env.Tool]) -> Mapping[str, Any]:
    return tool.schema if hasattr(tool, "schema") else tool().schema


def _format(section: Section) -> tool_formats.Format:
    try:
        return tool_formats.get(section["tool_format"])
    except ValueError as error:
        raise ValueError(f"env.tool_format: {error}") from error


def _check(section: Section) -> tool_env.Check:
    name = section["answer_check"]
    if own_code.is_own(name):
        own = own_code.function(name, "env.answer_check", "task", "answer")
        return functools.partial(own_code.call, own)
    if name not in answer_checks.NAMES:
        raise ValueError(
            f"env.answer_check is {name!r}, allowed are {answer_checks.NAMES} and your own as "
            "'module:function'"
        )
    if name in ("exact", "number"):
        return {"exact": answer_checks.exact, "number": answer_checks.number}[name]
    walls = isolation.choose(section["sandbox"])
    if name == "math":
        check = answer_checks.MathCheck(walls)
    elif section["dataset"]:
        # Complains here about what is wrong, not at the first answer.
        reasoning_gym_tasks.check(section["dataset"], section["dataset_options"])
        check = answer_checks.DatasetCheck(section["dataset"], section["dataset_options"], walls)
    else:
        raise ValueError(
            "env.answer_check is 'dataset', and env.dataset is empty; tasks of a file are judged "
            f"by one of {[one for one in answer_checks.NAMES if one != name]}"
        )
    atexit.register(check.close)
    return check


def _dataset(section: Section, seed: int) -> reasoning_gym_tasks.Dataset:
    options = {"seed": reasoning_gym_tasks.seed_of_run(seed)} | dict(section["dataset_options"])
    return _cached_dataset(section["dataset"], json.dumps(options))


@functools.lru_cache(maxsize=8)
def _cached_dataset(name: str, options: str) -> reasoning_gym_tasks.Dataset:
    """Both splits share one, because some take seconds to make."""
    return reasoning_gym_tasks.Dataset(name, json.loads(options))
