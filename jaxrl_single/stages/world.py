"""The side of a run that knows text: environment, tasks, language. No jax, for light processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import ml_collections

from jaxrl_single import types
from jaxrl_single.envs import base, chat
from jaxrl_single.envs import table as env_table
from jaxrl_single.rollout import episode


@dataclasses.dataclass(frozen=True)
class World:
    """What episodes are made of.

    Attributes:
      make_env: makes the environment of one episode.
      make_script: a scripted player for demonstrations, or None.
      language: text <-> token ids.
      train_tasks, eval_tasks: random access; no question is in both.
      rl_tasks: those of the training tasks that the policy itself plays; demonstrations may be of
        all.
      limits: of an episode.
    """

    make_env: Callable[[], base.Env]
    make_script: env_table.MakeScript | None
    language: chat.Chat
    train_tasks: Sequence[types.Task]
    rl_tasks: Sequence[types.Task]
    eval_tasks: Sequence[types.Task]
    limits: episode.Limits


def make(config: ml_collections.ConfigDict) -> World:
    """The world of the config.

    Raises:
      ValueError, OSError: unknown environment, bad options, a missing or malformed tasks file.
    """
    spec = env_table.get(config.env.name)
    section = config.env.to_dict()
    train_tasks = spec.make_tasks(section, "train", config.seed)
    return World(
        make_env=spec.make_env(section),
        make_script=spec.make_script and spec.make_script(section),
        language=spec.make_chat(),
        train_tasks=train_tasks,
        rl_tasks=_first(train_tasks, config.env.num_train_tasks),
        eval_tasks=spec.make_tasks(section, "eval", config.seed),
        limits=episode.Limits(
            max_turns=config.env.max_turns,
            max_turn_tokens=config.env.max_turn_tokens,
            max_tokens=config.env.max_tokens,
        ),
    )


def _first(tasks: Sequence[types.Task], count: int) -> Sequence[types.Task]:
    """The first `count` tasks, or all when that is 0 or more than there are."""
    if not 0 < count < len(tasks):
        return tasks
    return [tasks[index] for index in range(count)]
