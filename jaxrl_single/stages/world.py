"""The side of a run that knows text: environment, tasks, language. No jax, for light processes."""

from __future__ import annotations

import dataclasses
import datetime
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections

from jaxrl_single import types
from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import base, chat, chat_text, prompt
from jaxrl_single.envs import table as env_table
from jaxrl_single.models import pretrained
from jaxrl_single.rollout import episode, text_chat


@dataclasses.dataclass(frozen=True)
class World:
    """What episodes are made of.

    Attributes:
      make_env: makes the environment of one episode.
      make_script: a scripted player for demonstrations, or None.
      language: text <-> token ids, of the checkpoint that the run starts from, or else of the
        environment.
      text: the same for whoever asks a sampler.
      train_tasks, eval_tasks: random access; no question is in both.
      rl_tasks: those of the training tasks that the policy itself plays; demonstrations may be of
        all.
      limits: of an episode.
    """

    make_env: Callable[[], base.Env]
    make_script: env_table.MakeScript | None
    language: chat.Chat
    text: text_lib.Text
    train_tasks: Sequence[types.Task]
    rl_tasks: Sequence[types.Task]
    eval_tasks: Sequence[types.Task]
    limits: episode.Limits


def make(config: ml_collections.ConfigDict, now: datetime.datetime | None = None) -> World:
    """The world of the config.

    Args:
      now: the time that chat templates show; None = the present. A run's is that of its beginning,
        for an episode must not change at midnight.

    Raises:
      ValueError, OSError: unknown environment, bad options, a missing or malformed tasks file, or
        a checkpoint whose text is not in order.
    """
    spec = env_table.get(config.env.name)
    section = config.env.to_dict()
    language, text = make_language(config, now)
    train_tasks = spec.make_tasks(section, "train", config.seed)
    return World(
        make_env=spec.make_env(section),
        make_script=spec.make_script and spec.make_script(section),
        language=language,
        text=text,
        train_tasks=train_tasks,
        rl_tasks=_first(train_tasks, config.env.num_train_tasks),
        eval_tasks=spec.make_tasks(section, "eval", config.seed),
        limits=episode.Limits(
            max_turns=config.env.max_turns,
            max_turn_tokens=config.env.max_turn_tokens,
            max_tokens=config.env.max_tokens,
            max_episode_tokens=_longest_episode(config),
            env_s=config.env.step_timeout_s or None,
            # A process whose loop stands still has no heartbeat, and is ended for it.
            block_s=min(config.env.step_timeout_s or math.inf, config.supervisor.heartbeat_s / 2),
        ),
    )


def make_language(
    config: ml_collections.ConfigDict, now: datetime.datetime | None = None
) -> tuple[chat.Chat, text_lib.Text]:
    """The language of the run's episodes, and of what is asked and answered besides.

    Args:
      now: see `make`.

    Raises:
      ValueError, OSError: no tokenizer or chat template, or one that is not in order.
    """
    spec = env_table.get(config.env.name)
    if not config.model.path:
        language = spec.make_chat()
        return language, chat_text.CharText(language)
    fallback = config.model.tools_fallback
    text = text_lib.HfText.load(config.model.path, now=now, tools_fallback=fallback)
    told_first = told(config)
    _check_tools(text, told_first.tools, config.env.tool_format)
    language = text_chat.TextChat(
        text,
        system=told_first.system,
        tools=told_first.tools,
        template_args=config.model.template_args.to_dict(),
        on_rewrite=config.model.on_rewrite,
    )
    return language, text


def _check_tools(
    text: text_lib.HfText, tools: Sequence[Mapping[str, Any]], tool_format: str
) -> None:
    """Refuses tools that the model would be told to call otherwise than they are read."""
    if not tools or text.shows_tools or tool_format == text.tool_format:
        return
    raise ValueError(
        f"the model's chat template shows no tools, and model.tools_fallback would not tell the "
        f"model of calls in the form of env.tool_format={tool_format!r}; write {{tools}} and the "
        "form of a call into env.system_prompt, or set env.tool_format=hermes and "
        "model.tools_fallback=describe"
    )


def told(config: ml_collections.ConfigDict) -> prompt.PromptSpec:
    """What a model with a chat template is told first."""
    spec = env_table.get(config.env.name)
    return spec.make_prompt(config.env.to_dict()) if spec.make_prompt else prompt.PromptSpec()


def save_text(config: ml_collections.ConfigDict, world: World, directory: pathlib.Path) -> None:
    """Writes the tokenizer of a run, and what else of text its checkpoint has."""
    directory.mkdir(exist_ok=True)
    if config.model.path:
        pretrained.write_text(pretrained.locate(config.model.path), directory)
    else:
        world.language.save(directory / "tokenizer.json")


def _longest_episode(config: ml_collections.ConfigDict) -> int:
    """Tokens of all segments of an episode, so that a batch always fits the largest bucket.

    A trajectory is cut between segments into the fewest pieces that each fit a row. Two
    neighbours together exceed a row, so p pieces have more than p // 2 rows of tokens.

    The rows of a trajectory go together to the minibatch that has the fewest by then. None gets
    more than `share` trajectories of `rows` rows can need: the one with the fewest would hold more
    than share - 1 of them, so `share` or more, and so would all others, but one is still to come.
    """
    batch, minibatches = config.batch, config.algorithm.get("num_minibatches", 1)
    largest = max(batch.row_buckets)
    share = -(-batch.num_trajectories // minibatches)
    rows = min(largest // minibatches // share, largest // config.warm_start.batch_size)
    return (rows + 1) // 2 * batch.row_length


def _first(tasks: Sequence[types.Task], count: int) -> Sequence[types.Task]:
    """The first `count` tasks, or all when that is 0 or more than there are."""
    if not 0 < count < len(tasks):
        return tasks
    return [tasks[index] for index in range(count)]
