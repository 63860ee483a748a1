"""The README names what exists, and what it names exists."""

import pathlib
import re

from jaxrl_single.algorithms import table

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


def test_algorithms_are_those_of_the_table():
    limits = README.partition("## Limits")[2]
    assert set(re.findall(r"`([a-z_]+)`", limits.partition("Algorithms:")[2])) == set(table.TABLE)
