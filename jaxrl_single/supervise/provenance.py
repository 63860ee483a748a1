"""What a run is made of, by content: WORKDIR/provenance.json. No jax.

    {"format": 1,
     "parts": {"tasks": {"env.tasks_file": {"digest": "...", "where": "/data/train.jsonl"}}, ...},
     "accepted": [{"time": ..., "step": ..., "parts": ["env"], "changes": ["env: ..."]}]}

Parts, which are also the names that --accept_changed takes:

    config          the fields that decide about the numbers, under their canonical names
    tasks           files of tasks, or the version of the package that makes them
    demonstrations  files of the warm start
    model           config.json and tensors of model.path
    tokenizer       of model.path, with its stop tokens
    template        the chat templates of model.path
    env             source files of what the env section names as module:function

A file is known by its content: one that has moved is the same one.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from jaxrl_single import digest, workdir
from jaxrl_single.models import content
from jaxrl_single.supervise import sources, workdir_config

PARTS = ("config", "tasks", "demonstrations", "model", "tokenizer", "template", "env")
_FORMAT = 1

Parts = dict[str, dict[str, dict[str, str]]]  # part -> name -> {"digest", "where"}


def parts(config: Mapping[str, Any]) -> Parts:
    """The parts of a run with this config, as they are now.

    Args:
      config: nested dict, as ConfigDict.to_dict() gives it.

    Raises:
      ValueError, OSError: a file of it cannot be read.
    """
    flat = workdir_config.flatten(workdir.plain(config))
    path = flat.get("model.path")
    return {
        "config": {"fields": {"digest": digest.of_json(workdir_config.deciding(flat))}},
        "model": _with_place(content.of_model(path), path) if path else {},
        **_of_processes(config),
    }


def compare(
    paths: workdir.Workdir, config: Mapping[str, Any], *, accepted: Collection[str] = ()
) -> tuple[list[str], dict[str, Any]]:
    """`check` without writing anything: the lines for people, and the record to be kept."""
    now, record = parts(config), read(paths)
    begun = workdir.has_checkpoint(paths)
    if record and begun:
        now["demonstrations"] = record["parts"]["demonstrations"] | now["demonstrations"]
    changes = _changes(record["parts"], now) if record and begun else {}
    refused = [line for part in changes if part not in accepted for line in changes[part]]
    if refused:
        raise workdir_config.WorkdirConflict(_refusal(paths, refused, changes))
    fields = workdir_config.compare(paths, config, accepted="config" in accepted)
    told = [f"config: {line}" for line in fields]
    told += [f"accepted: {line}" for part in changes for line in changes[part]]
    if begun and "config" in accepted and fields:
        changes["config"] = [f"config: {line}" for line in fields]
    history = record["accepted"] if record and begun else []
    if changes:
        history = [*history, _acceptance(paths, changes)]
    if begun and not record:
        told.append(
            "the run began with a version that did not record what runs are made of; "
            f"{paths.provenance.name} records it as it is now"
        )
    return told, {"format": _FORMAT, "parts": now, "accepted": history}


def check(
    paths: workdir.Workdir, config: Mapping[str, Any], *, accepted: Collection[str] = ()
) -> list[str]:
    """Compares what a run is made of with what it was made of; keeps it, and the config.

    A workdir without a checkpoint holds nothing yet that was made of anything.

    Args:
      accepted: of PARTS; they may have changed, and that they have is recorded.

    Returns:
      Lines for people.

    Raises:
      workdir_config.WorkdirConflict: something differs that may not; nothing was changed.
      workdir.CannotWrite, workdir.BrokenFile: a record cannot be written or read.
      ValueError, OSError: as of `parts`.
    """
    told, record = compare(paths, config, accepted=accepted)
    workdir_config.check(paths, config, accepted="config" in accepted)
    workdir.write_json(paths.provenance, record)
    return told


def verify(paths: workdir.Workdir, config: Mapping[str, Any]) -> None:
    """For a process that starts while the run goes on: what it reads must be that of the run.

    Raises:
      workdir_config.WorkdirConflict: it was changed meanwhile.
      workdir.BrokenFile: the record cannot be read.
      ValueError, OSError: as of `parts`.
    """
    record = read(paths)
    now = _of_processes(config)
    del now["demonstrations"]
    changes = _changes(record["parts"], now) if record else {}
    if changes:
        lines = "\n".join(f"  {line}" for part in changes for line in changes[part])
        raise workdir_config.WorkdirConflict(
            f"while {paths.root} ran, something that it is made of was changed:\n{lines}\n"
            "Put it back, and run the same command again"
        )


def other_tokenizer(paths: workdir.Workdir, config: Mapping[str, Any]) -> list[str]:
    """Where the tokenizer of another run differs from that of a config, in lines for people."""
    record = read(paths)
    if record is None:
        return []
    now = {"tokenizer": _of_processes(config)["tokenizer"]}
    return _changes(record["parts"], now).get("tokenizer", [])


def read(paths: workdir.Workdir) -> dict[str, Any] | None:
    """The record of a workdir, None where an earlier version has left none.

    Raises:
      workdir.BrokenFile: it is not one.
    """
    record = workdir.read_json(paths.provenance)
    if record is None:
        return None
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise workdir.BrokenFile(
            f"{paths.provenance} is not a record of format {_FORMAT}; remove it if what the run is "
            "made of has not changed"
        )
    return record


def _of_processes(config: Mapping[str, Any]) -> Parts:
    """The parts that each process of a run reads at its start; the others only the first."""
    flat = workdir_config.flatten(workdir.plain(config))
    found: Parts = {part: {} for part in ("tasks", "demonstrations", "tokenizer", "template")}
    for name in workdir_config.FILE_FIELDS:
        file = pathlib.Path(flat.get(name) or "").expanduser()
        if name.startswith("env.") and flat.get(name):
            found["tasks"][name] = _of_tasks_file(file)
        elif file.is_file():  # nobody needs it any more once the warm start is done
            found["demonstrations"][name] = _of_tasks_file(file)
    if flat.get("env.dataset"):
        version = importlib.metadata.version("reasoning-gym")
        found["tasks"]["reasoning-gym"] = {"digest": f"version {version}"}
    if path := flat.get("model.path"):
        found |= {part: _with_place(one, path) for part, one in content.of_text(path).items()}
    modules = sources.of_section(config["env"])
    found["env"] = {
        name: {"digest": digest.of_file(file), "where": str(file)} for name, file in modules.items()
    }
    return found


def _of_tasks_file(path: pathlib.Path) -> dict[str, str]:
    found = {"digest": digest.of_file(path), "where": str(path.absolute())}
    # Tasks without an id are called by the file's name, and what is known of a task by its name.
    if any(line.strip() and b'"id"' not in line for line in path.read_bytes().splitlines()):
        found["name"] = path.stem
    return found


def _with_place(digests: Mapping[str, str], where: str) -> dict[str, dict[str, str]]:
    return {name: {"digest": one, "where": where} for name, one in digests.items()}


def _changes(before: Parts, now: Parts) -> dict[str, list[str]]:
    """Part -> a line for each difference, of all parts of `now` but the config."""
    found = {}
    for part in [part for part in PARTS if part in now and part != "config"]:
        old, new = before.get(part, {}), now[part]
        lines = [
            f"{part}: {_line(name, old.get(name), new.get(name))}"
            for name in sorted({*old, *new})
            if _content(old.get(name)) != _content(new.get(name))
        ]
        if lines:
            found[part] = lines
    return found


def _content(entry: Mapping[str, str] | None) -> tuple[str | None, ...]:
    return (None,) if entry is None else (entry["digest"], entry.get("name"))


def _line(name: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> str:
    where = (new or old or {}).get("where")
    digests = " -> ".join(digest.short(one["digest"]) if one else "nothing" for one in (old, new))
    if old and new and old["digest"] == new["digest"]:
        digests += (
            f", the same content, but its tasks without an id are called by the file's name, "
            f"{old.get('name')} -> {new.get('name')}"
        )
    return f"{name}{f' ({where})' if where else ''}: {digests}"


def _refusal(paths: workdir.Workdir, refused: list[str], changes: Mapping[str, Any]) -> str:
    listing = "\n".join(f"  {line}" for line in refused)
    return (
        f"{paths.root} was made of something else. SHA-256 of its contents, as the run began -> "
        f"now:\n{listing}\n"
        "Put back what was there, or choose another --workdir. To continue all the same (a mended "
        f"environment, say), add --accept_changed={','.join(changes)}; it is recorded in "
        f"{paths.provenance.name}"
    )


def _acceptance(paths: workdir.Workdir, changes: Mapping[str, list[str]]) -> dict[str, Any]:
    status = workdir.read_status(paths)
    return {
        "time": time.time(),
        "stage": status.stage if status else None,
        "step": status.step if status else None,
        "parts": list(changes),
        "changes": [line for part in changes for line in changes[part]],
    }
