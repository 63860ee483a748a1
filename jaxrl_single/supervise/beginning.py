"""A run that begins anew in a workdir that was used before. No jax."""

from __future__ import annotations

import pathlib
import shutil

from jaxrl_single import workdir


def begin_anew(paths: workdir.Workdir, weights: pathlib.Path) -> list[str]:
    """Removes what earlier starts have left in a workdir without a checkpoint.

    Nothing that comes will be built on it. No process of the run may live.

    Args:
      weights: of `weights_directory`.

    Returns:
      A line for people when there was anything to read.

    Raises:
      workdir.CannotWrite: something cannot be removed.
    """
    told = []
    if paths.evals.exists() or paths.metrics.exists():
        told.append(
            f"{paths.checkpoints} holds no checkpoint: the run begins anew, and metrics, "
            "evaluations, trajectories and weights of its earlier start are removed"
        )
    try:
        for path in (paths.status, paths.metrics, paths.evals):
            path.unlink(missing_ok=True)
        written = (paths.trajectories, paths.samples, paths.best, paths.tensorboard)
        for directory in (*written, paths.tickets, weights):
            for child in sorted(directory.glob("*")):
                shutil.rmtree(child) if child.is_dir() else child.unlink()
    except OSError as error:
        raise workdir.CannotWrite(error.filename or paths.root, error) from error
    return told
