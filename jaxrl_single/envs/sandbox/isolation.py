"""Which walls there are on this machine, and what can be seen from behind them."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from jaxrl_single.envs.sandbox import walls

NAMES = ("auto", "bubblewrap", "namespaces", "none")
_PACKAGE_PATH = str(pathlib.Path(__file__).parents[3])
_SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_OWN_CODE = ("envs", "types.py")
_PROBE_S = 30.0
# With the environment of the user nothing of it could leak; this is all that a program gets.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",  # threads count as processes
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # the same code prints the same in every run
}
_log = logging.getLogger(__name__)


class NoIsolation(ValueError):
    """Code cannot be isolated here as asked; the message says what was tried and what to do."""


@dataclasses.dataclass(frozen=True)
class Isolation:
    """How code is kept away from the rest of the machine.

    Attributes:
      name: of NAMES, but not "auto".
      description: for people.
    """

    name: str
    description: str


_ALL = {
    "bubblewrap": Isolation(
        "bubblewrap",
        "bubblewrap: own namespaces, a view of Python only, no network, resource limits",
    ),
    "namespaces": Isolation(
        "namespaces",
        "Linux namespaces: a view of Python only, no network, resource limits",
    ),
    "none": Isolation("none", "none at all: code sees files, network and processes as you do"),
}


def choose(name: str) -> Isolation:
    """Finds out whether an isolation works here, by trying it.

    Args:
      name: of NAMES; "auto" takes bubblewrap where it is installed and works, else namespaces,
        never "none".

    Raises:
      NoIsolation: it does not work; or for "auto", none does.
      ValueError: an unknown name.
    """
    if name not in NAMES:
        raise ValueError(f"env.sandbox is {name!r}, allowed are {NAMES}")
    if name == "none":
        return _ALL[name]
    failures = []
    for one in ("bubblewrap", "namespaces") if name == "auto" else (name,):
        failure = _failure(one)
        if failure is None:
            return _ALL[one]
        failures.append(f"{one}: {failure}")
    tried = "; ".join(failures)
    raise NoIsolation(
        f"env.sandbox is {name!r}, and code can't be isolated on this machine ({tried}). Install "
        "bubblewrap, or allow user namespaces (sysctl user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns; in a container --cap-add SYS_ADMIN), or, if "
        "the code may see and change all that you can, say so with env.sandbox=none"
    )


def notice(isolation: Isolation) -> str:
    """Which isolation is active, for people."""
    return f"isolation of what the model writes: {isolation.description}"


def announce(isolation: Isolation) -> None:
    """Puts the notice into the log."""
    level = logging.WARNING if isolation.name == "none" else logging.INFO
    _log.log(level, "%s", notice(isolation))


def view(*, own_code: bool = False) -> walls.View:
    """What Python needs to be seen: itself, its packages, and the system's libraries.

    Args:
      own_code: show also what of this package makes tasks and judges answers.

    Raises:
      NoIsolation: Python's own directory holds the home directory.
    """
    home = pathlib.Path.home().resolve()
    prefix = pathlib.Path(sys.base_prefix).resolve()
    if home.is_relative_to(prefix) and prefix != pathlib.Path("/usr"):
        raise NoIsolation(f"Python is installed in {prefix}, which holds the home directory")
    wanted = [sys.base_prefix, str(prefix), *import_paths(), str(pathlib.Path(__file__).parent)]
    if own_code:
        wanted += [f"{_PACKAGE_PATH}/jaxrl_single/{name}" for name in _OWN_CODE]
    links = {}
    for path in _SYSTEM_PATHS:
        if os.path.islink(path):
            links[path] = os.readlink(path)
        elif os.path.isdir(path):
            wanted.append(path)
    return walls.View(tuple(sorted(_outermost(wanted))), links)


def import_paths(*, own_code: bool = False) -> list[str]:
    """Directories of installed packages, and with `own_code` that of this one."""
    found = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    return list(dict.fromkeys(found + [_PACKAGE_PATH] * own_code))


def command(module: str, settings: dict[str, object]) -> list[str]:
    """Runs `main` of a module of this folder, with its settings, in a Python of its own."""
    code = (
        f"import sys; sys.path.insert(0, {_PACKAGE_PATH!r}); "
        f"from jaxrl_single.envs.sandbox import {module}; "
        f"sys.path.remove({_PACKAGE_PATH!r}); {module}.main(sys.argv[1])"
    )
    # The Python that a virtual environment was made of: it needs nothing but its own directory.
    python = os.path.realpath(sys.executable)
    return [python, "-s", "-P", "-S", "-B", "-c", code, json.dumps(settings)]


def bubblewrap_prefix(seen: walls.View, *, tmp_mb: int) -> list[str]:
    """The words in front of a command that put it behind bubblewrap's walls.

    Args:
      seen: what is visible.
      tmp_mb: size of /tmp in there, MiB.
    """
    # In full, because the program gets a search path of its own.
    program = shutil.which("bwrap") or "bwrap"
    words = [program, "--unshare-user", "--unshare-all", "--disable-userns"]
    words += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        words += ["--setenv", name, value]
    for path in seen.paths:
        words += ["--ro-bind", path, path]
    for place, target in seen.links.items():
        words += ["--symlink", target, place]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", str(tmp_mb * 2**20), "--tmpfs", "/tmp"]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"]


@functools.lru_cache
def _failure(name: str) -> str | None:
    """Why an isolation does not work here; None if it does."""
    probe = command("probe", {"view": dataclasses.asdict(view()), "build": name == "namespaces"})
    if name == "bubblewrap":
        if shutil.which("bwrap") is None:
            return "bwrap is not installed"
        if os.geteuid() == 0:
            return "for root it can't bound the number of processes"
        probe = [*bubblewrap_prefix(view(), tmp_mb=1), *probe]
    try:
        done = subprocess.run(
            probe, env=ENVIRONMENT, capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()[-300:] or "it failed silently"


def _outermost(paths: list[str]) -> set[str]:
    """Without those that lie within another one."""
    found = {path.rstrip("/") for path in paths}
    return {one for one in found if not any(one.startswith(f"{other}/") for other in found)}
