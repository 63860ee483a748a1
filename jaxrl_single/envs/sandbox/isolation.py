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
# What code of a model may import besides the standard library.
PACKAGES = ("mpmath", "numpy", "scipy", "sympy")
# Places behind the walls.
_PACKAGES_PLACE, _PYTHON_PLACE, _CODE_PLACE = "/packages", "/python", "/sandbox"
_NAMESPACES = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
)
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
    """What Python needs to be seen: itself, packages, and the system's libraries.

    Without `own_code` of installed packages there are only those of `PACKAGES`, at a place of their
    own: no task can be looked up, no judge be asked, and /tmp is empty wherever they are installed.

    Args:
      own_code: show all packages, and what of this one makes tasks and judges answers.

    Raises:
      NoIsolation: Python's own directory holds the home directory.
    """
    prefix = pathlib.Path(sys.base_prefix).resolve()
    home = pathlib.Path.home().resolve()
    if home.is_relative_to(prefix) and prefix != pathlib.Path("/usr"):
        raise NoIsolation(f"Python is installed in {prefix}, which holds the home directory")
    links = {path: os.readlink(path) for path in _SYSTEM_PATHS if os.path.islink(path)}
    wanted = [path for path in _SYSTEM_PATHS if path not in links and os.path.isdir(path)]
    moved = {}
    for path in _parts_of_python(prefix):
        if path.is_relative_to("/tmp"):
            moved[f"{_PYTHON_PLACE}/{path.name}"] = str(path)
        else:
            wanted.append(str(path))
    if own_code:
        wanted += [*import_paths(own_code=True)[:-1], str(pathlib.Path(__file__).parent)]
        wanted += [f"{_PACKAGE_PATH}/jaxrl_single/{name}" for name in _OWN_CODE]
        return walls.View(tuple(sorted(_outermost(wanted))), links, moved)
    moved |= {f"{_PACKAGES_PLACE}/{path.name}": str(path) for path in packages()}
    shown = walls.View(tuple(sorted(_outermost(wanted))), links, moved)
    return dataclasses.replace(shown, hidden=_hidden(shown))


def packages() -> list[pathlib.Path]:
    """Directories and modules of `PACKAGES` that are installed, and their shared libraries."""
    names = [f"{name}{suffix}" for name in PACKAGES for suffix in ("", ".libs", ".py")]
    places = (pathlib.Path(folder, name) for folder in _installed() for name in names)
    return [place for place in places if place.exists()]


def import_paths(*, own_code: bool = False) -> list[str]:
    """Where Python behind walls looks for packages; with `own_code` for this one, too."""
    return [*_installed(), _PACKAGE_PATH] if own_code else [_PACKAGES_PLACE]


def command(module: str, settings: dict[str, object], seen: walls.View | None = None) -> list[str]:
    """Runs `main` of a module of this folder, with its settings, in a Python of its own.

    Args:
      seen: what is visible to that Python, behind bubblewrap's walls; None = what is to this one.
    """
    place = _PACKAGE_PATH if seen is None else _CODE_PLACE
    code = (
        f"import sys; sys.path.insert(0, {place!r}); "
        f"from jaxrl_single.envs.sandbox import {module}; "
        f"sys.path.remove({place!r}); {module}.main(sys.argv[1])"
    )
    # The Python that a virtual environment was made of: it needs nothing but its own directory.
    python = os.path.realpath(sys.executable)
    python = python if seen is None else seen.inside(python)
    return [python, "-s", "-P", "-S", "-B", "-c", code, json.dumps(settings)]


def bubblewrap_prefix(seen: walls.View, *, tmp_mb: int) -> list[str]:
    """The words in front of a command that put it behind bubblewrap's walls.

    The command begins with the rights to finish them, see `walls.finish`.

    Args:
      seen: what is visible.
      tmp_mb: size of /tmp in there, MiB.
    """
    # In full, because the program gets a search path of its own.
    program = shutil.which("bwrap") or "bwrap"
    # Root needs no user namespace, and could not bound the number of processes in one.
    words = [program, *(["--unshare-user"] if os.geteuid() else []), *_NAMESPACES]
    words += ["--die-with-parent", "--new-session", "--clearenv", "--cap-add", "ALL"]
    environment = dict(ENVIRONMENT)
    if f"{_PYTHON_PLACE}/lib" in seen.moved:  # its library may be looked for at its old place only
        environment["LD_LIBRARY_PATH"] = f"{_PYTHON_PLACE}/lib"
    for name, value in environment.items():
        words += ["--setenv", name, value]
    words += ["--proc", "/proc", "--perms", "0755", "--dir", "/dev"]
    # Not all devices that bubblewrap has: with its terminals the command would lose its rights.
    for name in walls.DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    words += ["--perms", "1777", "--size", str(tmp_mb * 2**20), "--tmpfs", "/tmp"]
    code = {f"{_CODE_PLACE}/jaxrl_single/envs/sandbox": str(pathlib.Path(__file__).parent)}
    for place, path in sorted(({path: path for path in seen.paths} | seen.moved | code).items()):
        for folder in reversed(pathlib.Path(place).parents[:-1]):
            words += ["--perms", "0755", "--dir", str(folder)]
        words += ["--ro-bind", path, place]
    for path in filter(os.path.exists, walls.MASKED):
        words += ["--ro-bind", "/dev/null", path]
    for path in seen.hidden:
        words += ["--tmpfs", path, "--remount-ro", path]
    for place, target in seen.links.items():
        words += ["--symlink", target, place]
    return [*words, "--remount-ro", "/", "--chdir", "/tmp", "--"]


@functools.lru_cache
def _failure(name: str) -> str | None:
    """Why an isolation does not work here; None if it does."""
    seen = view()
    settings = {"view": dataclasses.asdict(seen), "build": name == "namespaces"}
    probe = command("probe", settings)
    if name == "bubblewrap":
        if shutil.which("bwrap") is None:
            return "bwrap is not installed"
        probe = [*bubblewrap_prefix(seen, tmp_mb=1), *command("probe", settings, seen)]
    try:
        done = subprocess.run(
            probe, env=ENVIRONMENT, capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()[-300:] or "it failed silently"


def _installed() -> list[str]:
    """Directories of installed packages."""
    return list(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))


def _parts_of_python(prefix: pathlib.Path) -> list[pathlib.Path]:
    """What a Python installed there needs; other things may lie beside it, environments say."""
    return [place for name in ("bin", "lib", "lib64") if (place := prefix / name).is_dir()]


def _hidden(shown: walls.View) -> tuple[str, ...]:
    """Directories within a view that may hold packages, and that of this package."""
    sources = [*shown.paths, *shown.moved.values()]
    roots = {str(pathlib.Path(sys.base_prefix).resolve()), "/usr", "/usr/local"}
    found = [pathlib.Path(_PACKAGE_PATH), *map(pathlib.Path, _installed())]
    for root in roots:
        for kind in ("site", "dist"):
            found += pathlib.Path(root).glob(f"lib*/python3*/{kind}-packages")
    resolved = {str(path.resolve()) for path in found if path.is_dir()}
    seen = [path for path in resolved if any(path.startswith(f"{one}/") for one in sources)]
    return tuple(sorted(map(shown.inside, _outermost(seen))))


def _outermost(paths: list[str]) -> set[str]:
    """Without those that lie within another one."""
    found = {path.rstrip("/") for path in paths}
    return {one for one in found if not any(one.startswith(f"{other}/") for other in found)}
