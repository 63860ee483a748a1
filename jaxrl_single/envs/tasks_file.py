"""Tasks from a JSONL file: one object per line with `question`, `answer` and, if wanted, `id`."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

from jaxrl_single import types

REQUIRED = ("question", "answer")


class InvalidTasks(ValueError):
    """A tasks file cannot be used; the message names file, line and what is expected there."""


def read_tasks(
    path: str | pathlib.Path, *, check: Callable[[types.Task], None] | None = None
) -> list[types.Task]:
    """Reads all tasks in the order of the file.

    A task without `id` is called `<name of the file>/<line number>`. All further keys go to
    `Task.data` unread. Blank lines are skipped.

    Args:
      path: of the file.
      check: called with each task; its ValueError is reported with file and line.

    Raises:
      InvalidTasks: the file is missing or empty, or a line is not such an object.
    """
    path = pathlib.Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTasks(f"tasks file {path}: cannot be read: {error}") from error
    tasks: list[types.Task] = []
    line_of_id: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        task = _read_line(line, where, f"{path.stem}/{number}")
        if task.id in line_of_id:
            raise InvalidTasks(
                f"{where}: id {task.id!r} was used in line {line_of_id[task.id]}; ids must differ"
            )
        line_of_id[task.id] = number
        _check(task, check, where)
        tasks.append(task)
    if not tasks:
        raise InvalidTasks(
            f"tasks file {path}: holds no task; one JSON object per line is expected"
        )
    return tasks


def read_split(
    train_path: str,
    eval_path: str,
    split: str,
    *,
    check: Callable[[types.Task], None] | None = None,
) -> list[types.Task]:
    """Reads both files and returns the tasks of one.

    Both, because a question in both would make the evaluation worthless.

    Raises:
      InvalidTasks, ValueError: a file cannot be used, one is missing, or they share a question.
    """
    files = {"train": train_path, "eval": eval_path}
    if not all(files.values()):
        raise ValueError(
            f"env.tasks_file is {train_path!r} and env.eval_tasks_file is {eval_path!r}; "
            "give both, or neither for generated tasks"
        )
    tasks = {name: read_tasks(path, check=check) for name, path in files.items()}
    trained = {task.question for task in tasks["train"]}
    shared = [task.id for task in tasks["eval"] if task.question in trained]
    if shared:
        raise ValueError(
            f"{len(shared)} of {len(tasks['eval'])} questions of env.eval_tasks_file are in "
            f"env.tasks_file too, the first with id {shared[0]!r}; held-out questions must differ"
        )
    return tasks[split]


def _read_line(line: str, where: str, default_id: str) -> types.Task:
    try:
        fields: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidTasks(
            f"{where}: not JSON ({error.msg} at column {error.colno}): {line[:60]!r}"
        ) from error
    except (ValueError, RecursionError) as error:  # numbers and brackets beyond all measure
        raise InvalidTasks(
            f"{where}: not JSON that can be read ({error}): {line[:60]!r}"
        ) from error
    if not isinstance(fields, dict):
        raise InvalidTasks(
            f"{where}: is a {type(fields).__name__}, expected an object with {list(REQUIRED)}"
        )
    missing = [key for key in REQUIRED if key not in fields]
    if missing:
        raise InvalidTasks(
            f"{where}: lacks {missing}; needed are {list(REQUIRED)}, found are {sorted(fields)}"
        )
    fields.setdefault("id", default_id)
    for key in ("id", *REQUIRED):
        if not isinstance(fields[key], str) or not fields[key].strip():
            raise InvalidTasks(
                f"{where}: {key} is {json.dumps(fields[key])}, expected a non-empty string"
            )
        if not fields[key].isprintable() and any(
            "\ud800" <= one <= "\udfff" for one in fields[key]
        ):
            raise InvalidTasks(f"{where}: {key} holds half of a character: {fields[key]!a}")
    data = {key: value for key, value in fields.items() if key not in ("id", *REQUIRED)}
    return types.Task(fields["id"], fields["question"], fields["answer"], data)


def _check(task: types.Task, check: Callable[[types.Task], None] | None, where: str) -> None:
    if check is None:
        return
    try:
        check(task)
    except ValueError as error:
        raise InvalidTasks(f"{where}: {error}") from error
