"""A sampler that nobody supervises: waits for a run, checks that it fits, serves over HTTP."""

from __future__ import annotations

import functools
import logging
import os
import socket
import sys
import time
from collections.abc import Callable

import ml_collections

from jaxrl_single import workdir
from jaxrl_single.run import child_process
from jaxrl_single.supervise import check_config, child, workdir_config

_LOOK_S = 0.5  # between looks for the run
_log = logging.getLogger(__name__)


def run(config: ml_collections.ConfigDict | None, root: str) -> int:
    """Serves the run in `root` until a signal; returns the exit code.

    Args:
      config: None = that of the run.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    os.environ.update(child_process.cache_env())
    paths, stopping = workdir.Workdir(root), child.stop_on_signals()
    try:
        if config is not None:
            check_config.check(config)
        if not _wait_for_run(paths, stopping):
            return 0
        if config is None:
            config = child_process.load_config(paths)
        workdir_config.check_sampler(paths, config.to_dict())
        config.rollout.client = "http"
        check_config.check_service(config)
    except (check_config.ConfigError, workdir_config.WorkdirConflict, workdir.BrokenFile) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from jaxrl_single.stages import sampler_process  # imports jax

    name = f"sampler-{socket.gethostname()}-{os.getpid()}"
    return child_process.guarded(
        functools.partial(sampler_process.run, name=name),
        config,
        paths,
        for_people=sampler_process.FOR_PEOPLE,
        stopping=stopping,
        beat=lambda: None,
    )


def _wait_for_run(paths: workdir.Workdir, stopping: Callable[[], bool]) -> bool:
    """False when it was asked to stop before a run began."""
    if not paths.config.exists():
        _log.info("waiting for a run in %s", paths.root)
    while not (paths.run.exists() and paths.config.exists()):
        if stopping():
            return False
        time.sleep(_LOOK_S)
    return True
