"""A workdir belongs to one config: a rerun with another one is refused with the difference."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from configs import common
from jaxrl_single import workdir

# Fields that may differ on a rerun, because they do not change what is learnt: how long, how
# often to look and to save, which machine does the work, and sizes that only change rounding.
FREE_FIELDS = (
    "rl.num_steps",  # may only be raised
    "env.step_timeout_s",
    "eval.every_steps",
    "eval.periodic_num_tasks",
    "trainer.log_every",
    "trainer.no_progress_s",
    "trainer.devices",
    "trainer.memory_fraction",
    "sampler.num_slots",
    "sampler.decode_chunk",
    "sampler.decode_slots",
    "sampler.page_size",
    "sampler.cache_tokens",
    "sampler.cache_sizes",
    "sampler.prefix_cache",
    "sampler.prefill_pages",
    "sampler.max_fed_tokens",
    "sampler.devices",
    "sampler.memory_fraction",
    "sampler.num_processes",
    "sampler.host",
    "sampler.port",
    "sampler.token_file",
    "sampler.max_waiting",
    "sampler.idle_s",
    "sampler.top_logprobs",
    "rollout.client",
    "rollout.sampler_urls",
    "rollout.sampler_patience_s",
    "checkpoint.every_steps",
    "checkpoint.keep",
    "checkpoint.keep_best",
    "trajectories.keep",
    "trajectories.every_steps",
    "trajectories.max_gb",
    "weights.directory",
    "weights.keep",
    "gate.enabled",
    "supervisor.max_restarts",
    "supervisor.heartbeat_s",
    "supervisor.stop_timeout_s",
)
# Files by whose content a run is known (supervise/provenance.py), so that they may move.
FILE_FIELDS = ("env.tasks_file", "env.eval_tasks_file", "warm_start.demonstrations_file")
_PLACES = (*FILE_FIELDS, "model.path")
# Today's name of a field -> the name under which digests and older workdirs know it. A field that
# is renamed gets a line here, and every run goes on: {"rl.age_limit": "rl.max_staleness"}.
CANONICAL: dict[str, str] = {}
# What a sampler reads of a config, and in which of that the samplers of one run may differ.
_OF_SAMPLERS = (
    "seed",
    "model.",
    "env.name",
    "env.max_tokens",
    "algorithm.",
    "sampler.",
    "weights.",
)
_FREE_FOR_SAMPLERS = (
    *(name for name in FREE_FIELDS if name.startswith("sampler.")),
    "weights.keep",
)
_MISSING = "(no such field)"


class WorkdirConflict(ValueError):
    """The workdir was made with another config; the message lists the fields that differ."""


def check(
    paths: workdir.Workdir, config: Mapping[str, Any], *, accepted: bool = False
) -> list[str]:
    """Compares a config with that of the workdir, and keeps it as config.json.

    Args:
      paths: of the run; its root exists.
      config: nested dict of JSON types and tuples, as ConfigDict.to_dict() gives it.
      accepted: every field may differ.

    Returns:
      One line per free field that has changed since the last start.

    Raises:
      WorkdirConflict: a field that matters differs, or rl.num_steps was lowered.
      workdir.CannotWrite: config.json cannot be written.
      workdir.BrokenFile: config.json is not JSON.
    """
    changed = compare(paths, config, accepted=accepted)
    new = workdir.plain(config)
    if workdir.read_json(paths.config) != new:
        workdir.write_json(paths.config, new)
    return changed


def check_place(paths: workdir.Workdir) -> None:
    """Finds what would keep `workdir.create` from making this workdir; makes nothing.

    Raises:
      workdir.CannotWrite: something else has its name, or its parent is not writable.
      workdir.BrokenFile: there is a run.json that `create` did not write.
    """
    there = next(place for place in (paths.root, *paths.root.parents) if place.exists())
    if not there.is_dir():
        raise workdir.CannotWrite(paths.root, NotADirectoryError(errno.ENOTDIR, ""))
    if not os.access(there, os.W_OK | os.X_OK):
        raise workdir.CannotWrite(paths.root, PermissionError(errno.EACCES, ""))
    if paths.run.exists():
        workdir.run_id_of(paths)


def compare(
    paths: workdir.Workdir, config: Mapping[str, Any], *, accepted: bool = False
) -> list[str]:
    """`check` without writing anything; a workdir without a config takes any."""
    saved = workdir.read_json(paths.config)
    if saved is None:
        return []
    if not isinstance(saved, dict):
        raise workdir.BrokenFile(f"{paths.config} is not the config of a run; choose another one")
    before = _canonical(flatten(complete(saved)))
    now = _canonical(flatten(workdir.plain(config)))
    changed = _changed(before, now)
    refused = [name for name in changed if not (accepted or _allowed(before, now, name))]
    if refused:
        listing = "\n".join(f"  {_line(before, now, name)}" for name in refused)
        raise WorkdirConflict(
            f"{paths.root} belongs to another config. Of the workdir -> as given now:\n{listing}\n"
            "Give the config of the workdir (--workdir alone does), or choose another --workdir. "
            f"Free to change on a rerun: {', '.join(FREE_FIELDS)} (rl.num_steps upwards only)"
        )
    return [_line(before, now, name) for name in changed]


def check_sampler(paths: workdir.Workdir, config: Mapping[str, Any]) -> None:
    """Refuses a config for a further sampler of this run that could not stand in for its own.

    Raises:
      WorkdirConflict: a field that decides about the numbers differs from the run's.
    """
    before = _canonical(flatten(complete(workdir.read_json(paths.config))))
    now = _canonical(flatten(workdir.plain(config)))
    refused = [
        name
        for name in _changed(before, now)
        if name.startswith(_OF_SAMPLERS) and name not in _FREE_FOR_SAMPLERS
    ]
    if refused:
        listing = "\n".join(f"  {_line(before, now, name)}" for name in refused)
        raise WorkdirConflict(
            f"a sampler for {paths.root} needs the config of that run. "
            f"Of the run -> as given now:\n{listing}\n"
            "Leave --config out to take that of the run. "
            f"Free for a sampler: {', '.join(_FREE_FOR_SAMPLERS)}"
        )


def complete(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config with what is younger than it: fields and sections, with their defaults.

    Not of the algorithm, whose section holds only what differs from its row.
    """
    whole = _renamed(saved)
    for name, section in workdir.plain(common.base().to_dict()).items():
        if name not in whole:
            whole[name] = section
        elif isinstance(section, dict) and name != "algorithm":
            whole[name] = {**section, **whole[name]}
    return whole


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"rl.num_steps": 150, ...} of a nested dict; an empty dict stays a value."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def deciding(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Of a flat config the fields that decide about the numbers, by their canonical names."""
    free = {*FREE_FIELDS, *_PLACES}
    return _canonical({name: value for name, value in flat.items() if name not in free})


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [name for name in sorted({*before, *now}) if _differ(before, now, name)]


def _differ(before: dict[str, Any], now: dict[str, Any], name: str) -> bool:
    return before.get(name, _MISSING) != now.get(name, _MISSING)


def _allowed(before: dict[str, Any], now: dict[str, Any], name: str) -> bool:
    if name == "rl.num_steps" and name in before and name in now:
        return now[name] >= before[name]
    return name in FREE_FIELDS or name in _PLACES


def _renamed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config with today's names of its fields."""
    whole = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in saved.items()
    }
    for today, canonical in CANONICAL.items():
        (section, field), (old_section, old_field) = today.split("."), canonical.split(".")
        if old_field in whole.get(old_section, {}):
            value = whole[old_section].pop(old_field)
            whole.setdefault(section, {})[field] = value
    return whole


def _canonical(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {CANONICAL.get(name, name): value for name, value in flat.items()}


def _line(before: dict[str, Any], now: dict[str, Any], name: str) -> str:
    return f"{name}: {before.get(name, _MISSING)!r} -> {now.get(name, _MISSING)!r}"
