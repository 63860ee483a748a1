"""The README names what exists, and what it names exists."""

import pathlib
import re
import types

import jax
import jax.numpy as jnp

from jaxrl_single.algorithms import parts, table
from jaxrl_single.ops import masked
from jaxrl_single.run import table as table_command

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_tree_lists_every_part_of_the_package():
    tree = README.partition("## The tree")[2].partition("```")[2].partition("```")[0]
    listed = set(re.findall(r"^  (\S+)", tree, re.M))
    parts = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "jaxrl_single").iterdir()
        if not path.name.startswith(("__", "."))
    }
    assert listed == parts


def test_files_that_are_named_exist():
    step = README.partition("## One step")[2].partition("```")[2].partition("```")[0]
    for name in re.findall(r"\b[a-z_]+(?:/[a-z_]+)*\.py\b", step):
        assert (ROOT / "jaxrl_single" / name).is_file(), name
    for name in re.findall(r"\b(?:launch|configs|benchmarks)/[a-z_]+\.(?:py|sh)\b", README):
        assert (ROOT / name).is_file(), name


def test_table_of_algorithms_is_the_generated_one():
    section = README.partition("<!-- python -m jaxrl_single.run.table -->")[2]
    assert section.partition("<!--")[0].strip() == table_command.markdown()


def test_rows_without_a_config_are_named():
    rollouts = README.partition("## Limits")[2].partition("- Rollouts are independent")[2]
    named = set(re.findall(r"`([a-z_]+)`", rollouts.partition("\n- ")[0]))
    assert named == {n for n in table.TABLE if not (ROOT / f"configs/tiny_{n}.py").is_file()}


def test_worked_example_of_a_new_algorithm_works(monkeypatch):
    example = README.partition("## Algorithms")[2].partition("```python\n")[2].partition("```")[0]
    function, part, row, config, test = re.split(r"^# .*\n", example, flags=re.M)[1:]
    names = {"jax": jax, "jnp": jnp, "masked": masked, **vars(parts), **vars(table)}
    exec(function, names)
    names["ceiling"] = types.SimpleNamespace(ceiling=names["ceiling"])
    monkeypatch.setitem(parts.KEEP_RULES, "ceiling", eval(f"{{{part}}}", names)["ceiling"])
    algorithm = eval(f"[{row}]", names)[0]
    monkeypatch.setitem(table.TABLE, algorithm.name, algorithm)
    settings = eval(f"{{{config}}}", names)
    assert table.get(settings.pop("name"), dict(_dotted(settings))) == algorithm
    exec(test, names)


def _dotted(settings):
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value
