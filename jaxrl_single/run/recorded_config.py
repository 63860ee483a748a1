"""The config that a workdir has recorded, for a command line without --config.

It is a config file itself, whose argument is the workdir, so that overrides work as ever:
--config=.../recorded_config.py:WORKDIR --config.rl.num_steps=200
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import ml_collections

from jaxrl_single import workdir
from jaxrl_single.run import child_process

_FLAG = re.compile(r"--?(config|workdir)(?:=(.*))?", re.DOTALL)


class NoConfig(ValueError):
    """The workdir has no config."""


def get_config(arg: str) -> ml_collections.ConfigDict:
    """The config of the workdir `arg`.

    Raises:
      ValueError: it has none; the message says what to do.
    """
    try:
        return child_process.load_config(workdir.Workdir(arg))
    except workdir.BrokenFile as error:
        raise ValueError(str(error)) from error


def add(argv: Sequence[str]) -> list[str]:
    """The command line with --config=... of its workdir, where it has --workdir and no --config.

    Raises:
      NoConfig: nothing is recorded there.
    """
    given = {}
    for place, word in enumerate(argv):
        if match := _FLAG.fullmatch(word):
            following = argv[place + 1] if place + 1 < len(argv) else ""
            given[match[1]] = following if match[2] is None else match[2]
    if "config" in given or not given.get("workdir"):
        return list(argv)
    paths = workdir.Workdir(given["workdir"])
    if not paths.config.exists():
        raise NoConfig(
            f"{paths.root} has no recorded config, because no run was begun there; begin one with "
            "--config=FILE, configs/tiny_sao.py for instance"
        )
    return [argv[0], f"--config={__file__}:{paths.root}", *argv[1:]]
