"""What the warm start imitates: a script's episodes, a file of one's own, or nothing.

A file (`warm_start.demonstrations_file`) has one JSON object a line, of one of two forms:

    {"messages": [{"role", "content", ...}, ...], "tools": [...]}    a conversation, chat form
    {"tokens": [...], "action_mask": [...], "segment_ids": [...]}    ids, as run.export writes them

Of a conversation the loss is on the assistant's turns alone, each with the token that ends it.
What such a turn reads is what the policy would read there: the rendering of all messages before it
up to where the assistant begins. A rendering that shows the past otherwise opens a new segment, as
in an episode. `tools` and a system message that a line does not give are those of the run.

A conversation whose turns don't fit into `env.max_tokens` (one segment) or the rows of a batch
(all segments) ends before the first turn that does not; one without any turn that fits is left
out. Lines whose `error` is not null are left out too. All three are counted.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from jaxrl_single import messages as messages_lib
from jaxrl_single import types, wire
from jaxrl_single.data import text as text_lib
from jaxrl_single.envs import chat, user_code
from jaxrl_single.envs import table as env_table
from jaxrl_single.rollout import episode, recording
from jaxrl_single.stages import world as world_lib

_FIT, _CUT, _LEFT_OUT, _ERRORS = "whole", "cut", "left out", "errors"
_CHECKED_TASKS = 1000  # of a file, for a script that may not know how to play them


class InvalidDemonstrations(ValueError):
    """A demonstrations file can't be used; the message names line, fault and what is allowed."""


@dataclasses.dataclass(frozen=True)
class Demonstrations:
    """Of a file.

    Attributes:
      trajectories: what is imitated, in the order of the file.
      message: for people, how many lines were used and what became of the others.
    """

    trajectories: list[types.Trajectory]
    message: str


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Turns a line into a trajectory.

    Attributes:
      text: renders messages.
      system, tools: of the run, for lines that give none.
      closing_id: ends a turn behind which the template writes nothing.
    """

    text: text_lib.Text
    limits: episode.Limits
    system: str
    tools: Sequence[Mapping[str, Any]]
    template_args: Mapping[str, Any]
    closing_id: int


def kind(config: ml_collections.ConfigDict) -> str:
    """What the warm start does: "workdir", "file", "script" or "none"."""
    warm = config.warm_start
    if warm.workdir:
        return "workdir"
    if not warm.num_steps:
        return "none"
    if warm.demonstrations_file:
        return "file"
    make_script = env_table.get(config.env.name).make_script
    return "script" if make_script and make_script(config.env.to_dict()) else "none"


def plan(config: ml_collections.ConfigDict) -> str:
    """The warm start in words."""
    warm, found = config.warm_start, kind(config)
    steps = f"{warm.num_steps} supervised steps of {warm.batch_size} demonstrations"
    if found == "workdir":
        return f"taken from {warm.workdir}"
    if found == "file":
        return f"{steps} out of {warm.demonstrations_file}"
    if found == "script":
        return (
            f"{steps} out of {warm.num_demonstrations}, a mistake at {warm.mistake_rate:.0%} of "
            "the actions"
        )
    model = config.model.path or "a model of random weights"
    if not warm.num_steps:
        return f"none (warm_start.num_steps is 0), RL starts from {model}"
    return (
        f"none, RL starts from {model}: env.name {config.env.name!r} has no script that plays "
        "demonstrations with these options, and warm_start.demonstrations_file names none"
    )


def check(config: ml_collections.ConfigDict) -> list[str]:
    """Lines for people about the warm start of a run that has none yet.

    Raises:
      ValueError: the file can't be used, or the script can't play the tasks.
    """
    found = kind(config)
    if found == "file":
        return [read(config, world_lib.make(config)).message]
    if found == "script":
        _check_script(config)
    if found == "none":
        return [f"warm start: {plan(config)}"]
    return []


def read(config: ml_collections.ConfigDict, world: world_lib.World) -> Demonstrations:
    """Reads `warm_start.demonstrations_file`.

    Raises:
      InvalidDemonstrations: it is missing, a line is not of these forms, or there are too few.
    """
    path = pathlib.Path(config.warm_start.demonstrations_file)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDemonstrations(
            f"warm_start.demonstrations_file {path}: cannot be read: {error}"
        ) from error
    reader = _reader(config, world)
    counts: collections.Counter[str] = collections.Counter()
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            trajectory, what = _of_line(line, len(found), reader)
        except ValueError as error:
            raise InvalidDemonstrations(
                f"{path}, line {number}: {user_code.writable(str(error), user_code.MAX_LINE)}"
            ) from error
        counts[what] += 1
        if trajectory is not None:
            found.append(trajectory)
    if len(found) < config.warm_start.batch_size:
        raise InvalidDemonstrations(
            f"{path}: {_counted(counts)}, fewer than warm_start.batch_size "
            f"({config.warm_start.batch_size}); each step takes as many different ones"
        )
    return Demonstrations(found, f"demonstrations: {path}: {_counted(counts)}")


def _counted(counts: Mapping[str, int]) -> str:
    used = counts[_FIT] + counts[_CUT]
    told = f"{used} conversations to imitate"
    if counts[_CUT]:
        told += f", {counts[_CUT]} of them cut before a turn that doesn't fit env.max_tokens"
    if counts[_LEFT_OUT]:
        told += f"; {counts[_LEFT_OUT]} left out whose first turn doesn't fit"
    if counts[_ERRORS]:
        told += f"; {counts[_ERRORS]} left out that are errors"
    return told


def _check_script(config: ml_collections.ConfigDict) -> None:
    """The script must know how to play the tasks: all of a file, the last of generated ones."""
    spec, section, warm = env_table.get(config.env.name), config.env.to_dict(), config.warm_start
    make_script = spec.make_script(section)
    tasks = spec.make_tasks(section, "train", config.seed)
    count = min(warm.num_demonstrations, len(tasks))
    count = min(count, _CHECKED_TASKS) if isinstance(tasks, list) else 1
    for task in tasks[-count:] if isinstance(tasks, list) else [tasks[len(tasks) - 1]]:
        try:
            make_script(task, mistake_rate=warm.mistake_rate, rng=np.random.default_rng(0))
        except BaseException as error:
            if user_code.is_ours(error) and not isinstance(error, Exception | SystemExit):
                raise
            raise ValueError(
                f"the script of env.name {config.env.name!r} can't play task {task.id!r} "
                f"({user_code.shorten(task.question, 60)!r}): {user_code.line(error)}. Give "
                "demonstrations of your own (warm_start.demonstrations_file), or start RL from the "
                "given model (warm_start.num_steps=0)"
            ) from error


def _reader(config: ml_collections.ConfigDict, world: world_lib.World) -> _Reader:
    told = world_lib.told(config)
    return _Reader(
        world.text,
        world.limits,
        system=told.system,
        tools=told.tools,
        template_args=config.model.template_args.to_dict() if config.model.path else {},
        closing_id=world.language.action_ids("")[-1],
    )


def _of_line(line: str, number: int, reader: _Reader) -> tuple[types.Trajectory | None, str]:
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}): {line[:60]!r}") from error
    if not isinstance(fields, dict) or not {"messages", "tokens"} & fields.keys():
        raise ValueError(
            "expected an object with `messages` (a conversation) or with `tokens` and "
            f"`action_mask` (ids), found {sorted(fields) if isinstance(fields, dict) else fields!r}"
        )
    if fields.get("error") is not None:
        return None, _ERRORS
    record = recording.Recording()
    if "tokens" in fields:
        whole = _replay_ids(fields, record, reader)
    else:
        whole = _replay_messages(fields, record, reader)
    if not record.num_actions:
        return None, _LEFT_OUT
    record.end()
    task = types.Task(f"demonstrations/{number}", "", "")
    ticket = types.Ticket("demonstrations", number, 0, task, purpose="warm_start")
    trajectory = record.trajectory(ticket, source="script", error=None)
    types.validate(trajectory)
    return trajectory, _FIT if whole else _CUT


def _replay_messages(fields: dict[str, Any], record: recording.Recording, reader: _Reader) -> bool:
    """Records the turns that fit; returns whether that is all of them."""
    messages = _messages(fields["messages"], reader)
    tools = messages_lib.check_tools(fields.get("tools", reader.tools)) or None

    def render(count: int, *, to_act: bool) -> list[int]:
        return reader.text.render(
            messages[:count],
            tools=tools,
            add_generation_prompt=to_act,
            template_args=reader.template_args,
        )

    places = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    read = [render(place, to_act=True) for place in places]
    for place, before, following in itertools.zip_longest(places, read, read[1:]):
        action = _action(before, render(place + 1, to_act=False), following or [], reader)
        if action is None:
            raise ValueError(
                f"messages[{place}]: the chat template does not show this turn of the assistant "
                "behind what a policy would read there; see model.template_args"
            )
        if not _fits(before, action, record, reader.limits):
            return False
        _add(before, action, record)
    return True


def _messages(given: Any, reader: _Reader) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise ValueError("`messages` must be a list of {role, content}")
    messages = messages_lib.normalise(given)
    for place, message in enumerate(messages):
        silent = not message.get("content") and not message.get("tool_calls")
        if message["role"] == "assistant" and silent:
            raise ValueError(f"messages[{place}]: the assistant says and calls nothing")
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise ValueError("no message is of the assistant, so there is nothing to imitate")
    if roles[0] == "assistant":
        raise ValueError("messages[0] is of the assistant; something must be said to it first")
    for place, pair in enumerate(itertools.pairwise(roles)):
        if pair == ("assistant", "assistant"):
            raise ValueError(f"messages[{place + 1}]: two turns of the assistant follow each other")
    system = [{"role": "system", "content": reader.system}] if reader.system else []
    return messages if roles[0] == "system" else [*system, *messages]


def _action(
    before: list[int], after: list[int], following: list[int], reader: _Reader
) -> list[int] | None:
    """The turn that follows `before`, with the token that ends it.

    Some templates end a turn by the name of whoever speaks next: `following` is what the turn after
    it reads, [] for the last one.
    """
    if after[: len(before)] != before:
        return None
    said, stops = after[len(before) :], reader.text.stop_token_ids
    for place, token in enumerate(said):
        if token in stops:
            return said[: place + 1]
    behind = following[len(after) : len(after) + 1]
    if following[: len(after)] == after and behind and behind[0] in stops:
        return [*said, *behind]
    return [*said, reader.closing_id]


def _add(before: list[int], action: list[int], record: recording.Recording) -> None:
    context = record.context
    if before[: len(context)] == context:
        record.observe(chat.Observed(before[len(context) :]))
    else:
        record.observe(chat.Observed(before, opens_segment=True))
    _act(action, record)


def _act(action: list[int], record: recording.Recording) -> None:
    zeros, unsampled = [0.0] * len(action), [types.NOT_SAMPLED] * len(action)
    record.act(wire.Completion(action, zeros, list(zeros), unsampled, "stop"))


def _fits(
    before: list[int], action: list[int], record: recording.Recording, limits: episode.Limits
) -> bool:
    context = record.context
    follows = before[: len(context)] == context
    total = len(record.tokens) + len(before) + len(action) - (len(context) if follows else 0)
    most = limits.max_episode_tokens
    return len(before) + len(action) <= limits.max_tokens and (most is None or total <= most)


def _replay_ids(fields: dict[str, Any], record: recording.Recording, reader: _Reader) -> bool:
    """As `_replay_messages`, of a line of ids."""
    tokens, mask, segments = _ids(fields, reader)
    borders = [0, *(np.flatnonzero((np.diff(mask) != 0) | (np.diff(segments) != 0)) + 1)]
    before: list[int] = []
    for start, stop in zip(borders, [*borders[1:], len(tokens)], strict=True):
        piece = [int(token) for token in tokens[start:stop]]
        if start and segments[start] != segments[start - 1]:
            before = []
        if not mask[start]:
            before = before + piece
            continue
        if not _fits(before, piece, record, reader.limits):
            return False
        _add(before, piece, record)
        before = before + piece
    return True


def _ids(fields: dict[str, Any], reader: _Reader) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    length = len(fields["tokens"]) if isinstance(fields["tokens"], list) else 0
    arrays = []
    for name, default in (("tokens", None), ("action_mask", None), ("segment_ids", [1] * length)):
        value = fields.get(name, default)
        whole = isinstance(value, list) and all(isinstance(one, int) for one in value)
        if not whole or len(value) != length or not length:
            raise ValueError(f"`{name}` must be a list of {length or 'some'} whole numbers")
        arrays.append(np.array(value, np.int64))
    tokens, mask, segments = arrays
    bad = tokens[(tokens < 0) | (tokens >= reader.text.vocab_size)]
    if len(bad):
        raise ValueError(
            f"token {bad[0]} is not in the vocabulary of this model, which has "
            f"{reader.text.vocab_size} ids; it was made by another tokenizer"
        )
    opens = np.diff(segments, prepend=segments[0] - 1) != 0
    if not mask.any() or (opens & (mask != 0)).any():
        raise ValueError("`action_mask` must mark tokens, and not the first of a segment")
    return tokens, mask != 0, segments
