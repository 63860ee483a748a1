"""What is wrong with --config and the fields that override it, in a sentence."""

from __future__ import annotations

import difflib
import pathlib
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import ml_collections
from absl import flags

_EXPECTED = {
    bool: ("true or false", flags.BooleanParser()),
    int: ("a whole number", flags.IntegerParser()),
    float: ("a number", flags.FloatParser()),
}


def check_loaded() -> None:
    """Raises what went wrong while the config file was read, which ml_collections puts off.

    Raises:
      TypeError: its get_config returns no ConfigDict.
      OSError: from the file.
    """
    if "config" not in flags.FLAGS:
        return
    flag = flags.FLAGS["config"]
    if not flag.present or isinstance(flag.value, ml_collections.ConfigDict):
        return
    _ = getattr(flag.value, "lock", None)  # raises the error that it stands for
    raise TypeError("get_config returned no ConfigDict")


def explain(error: Exception, argv: Sequence[str]) -> str:
    """The sentence for an error of flag parsing; "" when it is not about --config."""
    given = _values(argv)
    if "config" not in given:
        first = next((name for name in given if name.startswith("config.")), None)
        return first and f"--{first} overrides a field of --config=FILE, which is missing"
    places = list(given)
    if early := next((n for n in places[: places.index("config")] if n.startswith("config.")), ""):
        return f"--{early} must come after --config, whose field it overrides"
    path = given["config"].partition(":")[0]
    if problem := _of_path(path):
        return problem
    if problem := _of_code(error, pathlib.Path(path), given["config"]):
        return problem
    try:
        config = flags.FLAGS["config"].parser.parse(given["config"])
        if not isinstance(config, ml_collections.ConfigDict):
            kind = type(config).__name__
            return f"--config={path}: get_config returns a ConfigDict, and this one a {kind}"
        problems = [_of_override(config, name, value) for name, value in given.items()]
    except Exception as again:
        return _of_code(again, pathlib.Path(path), given["config"]) or f"--config={path}: {again}"
    return next(filter(None, problems), "")


def _values(argv: Sequence[str]) -> dict[str, str]:
    """{"config": "configs/tiny_sao.py", "config.rl.num_steps": "3"} of --config... in argv."""
    found = {}
    for place, word in enumerate(argv):
        if match := re.fullmatch(r"--?(?:no)?(config(?:\.[\w.]+)?)(?:=(.*))?", word, re.DOTALL):
            following = argv[place + 1] if place + 1 < len(argv) else ""
            found[match[1]] = following if match[2] is None else match[2]
    return found


def _of_path(path: str) -> str:
    file = pathlib.Path(path)
    if not path or not file.exists():
        near = pathlib.Path("configs") / f"{file.stem}.py"
        known = sorted(p.as_posix() for p in pathlib.Path("configs").glob("*.py"))
        alike = difflib.get_close_matches(path, known, 3, cutoff=0.85)
        guesses = [near.as_posix()] if near.exists() else alike
        hint = f"did you mean {' or '.join(guesses)}?" if guesses else "give the path of a config"
        return f"--config={path}: there is no such file; {hint}"
    if not file.is_file() or file.suffix != ".py":
        what = "a directory" if file.is_dir() else "not a Python file"
        return (
            f"--config={path} is {what}; a config is a Python file with a function "
            "get_config(arg), such as configs/tiny_sao.py"
        )
    return ""


def _of_code(error: BaseException, file: pathlib.Path, given: str) -> str:
    """An error that the code of a config file raised; "" when it was somebody else's."""
    for one in _chain(error):
        if isinstance(one, SyntaxError) and one.filename and file.samefile(one.filename):
            return f"--config={file}, line {one.lineno}: {one.msg}: {(one.text or '').strip()}"
        frames = traceback.extract_tb(one.__traceback__)
        own = [i for i, frame in enumerate(frames) if _same(frame.filename, file)]
        if own and isinstance(one, ValueError):
            return f"--config={given}: {one}"
        if own:
            others = [frame for frame in frames[own[0] :] if "site-packages" not in frame.filename]
            where = "".join(traceback.format_list(others)).rstrip()
            what = "".join(traceback.format_exception_only(one)).strip()
            return f"--config={given} can't be read, because its code fails: {what}\n{where}"
        if isinstance(one, AttributeError) and "no attribute 'get_config'" in str(one):
            return f"--config={file} has no function get_config(arg) that returns a config"
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those before it, the first cause first."""
    if error is not None:
        yield from _chain(error.__cause__ or error.__context__)
        yield error


def _same(name: str, file: pathlib.Path) -> bool:
    other = pathlib.Path(name)
    return other.exists() and file.exists() and other.samefile(file)


def _of_override(config: ml_collections.ConfigDict, name: str, value: str) -> str:
    section: Any = config
    names = name.split(".")[1:]
    for place, part in enumerate(names):
        if not isinstance(section, ml_collections.ConfigDict) or part not in section:
            return f"--{name}: {_unknown(section, '.'.join(names[:place]), part)}"
        section = section[part]
    if isinstance(section, ml_collections.ConfigDict) and names:
        fields = ", ".join(section)
        return f"--{name} is a section; set one of its fields: {fields}"
    return _of_type(name, value, section) if names else ""


def _unknown(section: Any, where: str, part: str) -> str:
    if not isinstance(section, ml_collections.ConfigDict):
        return f"{where} is one value, {section!r}, and has no fields"
    known = list(section)
    near = difflib.get_close_matches(part, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"there is no field {part!r} in {where or 'this config'}; {hint}"
        f"the fields are {', '.join(sorted(known))}"
    )


def _of_type(name: str, value: str, default: Any) -> str:
    expected, parser = _EXPECTED.get(type(default), ("", None))
    try:
        if parser:
            parser.parse(value)
    except (ValueError, TypeError):
        return f"--{name} is {value!r}, expected {expected}; without this flag it is {default!r}"
    return ""
