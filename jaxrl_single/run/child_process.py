"""What the processes of a run share: config, heartbeat, signals, readable errors."""

from __future__ import annotations

import logging
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import ml_collections

from jaxrl_single import workdir
from jaxrl_single.run import command_line
from jaxrl_single.stages import waiting
from jaxrl_single.supervise import child, provenance, workdir_config

Body = Callable[..., None]  # (config, paths, *, stopping, beat)
_OWN = {"algorithm", "env", "mode", "model", "rl", "seed"}  # no default can stand for these
_FOR_PEOPLE = (workdir.CannotWrite, workdir.BrokenFile)


def run(
    name: str, root: str, body: Body, *, for_people: tuple[type[Exception], ...] = _FOR_PEOPLE
) -> None:
    """Runs a process of the run in `root`.

    Exits with 0 when done, with 128 + SIGNAL when stopped, with 2 when there is no run or what it
    is made of has changed meanwhile, else with 1.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax tells its whole life at INFO
    paths = workdir.Workdir(root)
    try:
        workdir.run_id_of(paths)
        config = load_config(paths)
        provenance.verify(paths, config.to_dict())
    except (ValueError, OSError) as error:
        # Nothing is made where there is no run.
        sys.exit(command_line.refuse(str(error)))
    heartbeat = child.start(paths, name)
    stopping = child.stop_on_signals()
    code = guarded(
        body, config, paths, for_people=for_people, stopping=stopping, beat=heartbeat.beat
    )
    sys.exit(code)


def guarded(
    body: Body,
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    *,
    for_people: tuple[type[Exception], ...],
    stopping: child.StopRequest,
    beat: Callable[[], None],
) -> int:
    """Exit code of `body`: 0 when it is done, 128 + SIGNAL when a signal has stopped it.

    Errors made for people are printed without a traceback.
    """
    try:
        body(config, paths, stopping=stopping, beat=beat)
    except waiting.Stopped:
        logging.info("stopped as asked; the same command continues")
        return stopping.exit_code
    except for_people as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def cache_env() -> dict[str, str]:
    """Compiled programs are kept between runs unless the user has said where or not at all."""
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    default = str(pathlib.Path.home() / ".cache" / "jaxrl_single" / "jax")
    return {
        name: os.environ.get(name, value)
        for name, value in zip(names, (default, "0.3"), strict=True)
    }


def load_config(paths: workdir.Workdir) -> ml_collections.ConfigDict:
    """The config of the workdir; JSON has no tuples, so lists are read as such.

    A field that is younger than the run has its default.

    Raises:
      workdir.BrokenFile: there is none, or it is not a config in JSON.
    """
    found = workdir.read_json(paths.config)
    if found is None:
        raise workdir.BrokenFile(f"{paths.root} holds no config yet: config.json is missing")
    missing = _OWN - set(found) if isinstance(found, dict) else _OWN
    if missing:
        raise workdir.BrokenFile(
            f"{paths.config} is not the config of a run: it lacks {', '.join(sorted(missing))}; "
            "choose another --workdir"
        )
    saved = ml_collections.ConfigDict(_with_tuples(workdir_config.complete(found)))
    saved.lock()
    return saved


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    return value
