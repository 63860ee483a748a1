"""The README names what exists, and what it names exists."""

import pathlib
import re

from jaxrl_single.algorithms import parts, table
from jaxrl_single.run import table as table_command
from jaxrl_single.stages import build
from jaxrl_single.supervise import check_config

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
    prose = re.sub(r"```python.*?```", "", README, flags=re.S)  # which names files to be made
    for name in re.findall(r"\b(?:launch|configs|benchmarks)/[a-z_]+\.(?:py|sh)\b", prose):
        assert (ROOT / name).is_file(), name


def test_table_of_algorithms_is_the_generated_one():
    section = README.partition("<!-- python -m jaxrl_single.run.table -->")[2]
    assert section.partition("<!--")[0].strip() == table_command.markdown()


def test_rows_without_a_config_are_named():
    rollouts = README.partition("## Limits")[2].partition("- Rollouts are independent")[2]
    named = set(re.findall(r"`([a-z_]+)`", rollouts.partition("\n- ")[0]))
    assert named == {n for n in table.TABLE if not (ROOT / f"configs/tiny_{n}.py").is_file()}


def test_worked_example_of_a_new_algorithm_runs_as_written(monkeypatch):
    example = README.partition("### Add an algorithm")[2].partition("```python\n")[2]
    monkeypatch.setitem(parts.KEEP_RULES, "ceiling", None)  # both are taken out again
    monkeypatch.setitem(table.TABLE, "capped", None)
    names = {}
    exec(example.partition("```")[0], names)
    names["test_ceiling"]()
    config = names["get_config"]("tiny")
    check_config.check(config)
    assert build.algorithm(config) == table.TABLE["capped"]
    for file in re.findall(r"^# (jaxrl_single/algorithms/\S+\.py)", example, re.M):
        assert (ROOT / file).is_file()
