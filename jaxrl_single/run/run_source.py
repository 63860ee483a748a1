"""The weights of a run as what a command works on: --version, and where a workdir has them."""

from __future__ import annotations

import argparse
import logging
import os
import pathlib
from typing import Any

from jaxrl_single import workdir
from jaxrl_single.run import child_process


def is_run(path: str | os.PathLike) -> bool:
    """Whether this is the workdir of a run, and no checkpoint."""
    return (pathlib.Path(path) / "run.json").exists()


def version(text: str) -> int | str:
    """The argument --version: a number, or "best"."""
    if text != "best" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'best'")
    return text if text == "best" else int(text)


def open_weights(
    source: str | os.PathLike, *, version: int | str | None, critic: bool = False
) -> Any:
    """A stages.run_weights.RunWeights, which has what a `Pretrained` has; errors as of `find`."""
    from jaxrl_single import checkpoint  # imports jax
    from jaxrl_single.stages import run_weights

    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns that it will only read
    paths = workdir.Workdir(source)
    config = child_process.load_config(paths)
    try:
        return run_weights.find(config, paths, version=version, critic=critic)
    except checkpoint.CheckpointError as error:
        raise ValueError(str(error)) from error
