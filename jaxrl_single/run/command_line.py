"""How every command of run/ ends when something is wrong with what it was given: by a sentence.

A mistake of the user, in a flag, a config or a file, is one line that begins with "error: " on
standard error, exit code 2 and no traceback. Only a bug in the user's own config file shows where
it is, after the sentence. What is no mistake of the user keeps its traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging

from jaxrl_single import workdir

MISTAKE = 2  # exit code
INTERRUPTED = 130  # 128 + SIGINT, as shells count
FOR_PEOPLE = (ValueError, OSError, ModuleNotFoundError, workdir.CannotWrite)


def run(main: Callable[[list[str]], None]) -> None:
    """As `absl.app.run`, for the commands that take --config or --workdir; never returns."""
    app.run(main, flags_parser=_parse)


def tool(main: Callable[[], int | None], *, for_people: tuple[type[Exception], ...] = ()) -> int:
    """Exit code of a command that turns files into files.

    Args:
      for_people: further errors whose messages are for the user.
    """
    try:
        return main() or 0
    except BrokenPipeError:  # the reader of a pipe, `head` for instance, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (*FOR_PEOPLE, *for_people) as error:
        return refuse(sentence(error))
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED


def refuse(text: str) -> int:
    """Prints what is wrong; returns the exit code."""
    print(f"error: {text}", file=sys.stderr, flush=True)
    return MISTAKE


def sentence(error: BaseException) -> str:
    """What an error says, without numbers of the operating system."""
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {error.name!r} is not installed: pip install {error.name}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.strerror}: {os.fspath(error.filename)!r}"
    if isinstance(error, UnicodeDecodeError):
        return f"not text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
    return str(error) or type(error).__name__


def _parse(argv: Sequence[str]) -> list[str]:
    """Parses the flags, or ends the process with a sentence."""
    from jaxrl_single.run import config_flag  # imports ml_collections, which tools do without

    logging.set_verbosity(logging.ERROR)  # of absl, which would warn of what is told below
    try:
        rest = flags.FLAGS(argv)
        config_flag.check_loaded()
    except Exception as error:  # whatever a config file raises comes out here
        sys.exit(refuse(config_flag.explain(error, argv) or _of_flag(error)))
    if rest[1:]:
        sys.exit(refuse(f"unknown arguments {rest[1:]}; flags begin with --, see --help"))
    return rest


def _of_flag(error: Exception) -> str:
    text = str(error).strip()
    if missing := re.match(r"flag --(\w+)=None:", text):
        name = missing[1]
        return f"--{name} is missing ({flags.FLAGS[name].help}); see --help"
    if unknown := re.match(r"Unknown command line flag '(.+?)'\.?(?: Did you mean: (\S+))?", text):
        hint = f"; did you mean --{unknown[2]}?" if unknown[2] else ""
        return f"this command has no flag --{unknown[1]}{hint or ';'} See --help"
    return f"{text}; see --help"
