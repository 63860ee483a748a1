"""README and docs name what exists, and what they name exists."""

import pathlib
import re

from jaxrl_single.algorithms import parts, table
from jaxrl_single.run import table as table_command
from jaxrl_single.stages import build
from jaxrl_single.supervise import check_config

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ALGORITHMS, ARCHITECTURE, LIMITS = (
    (ROOT / f"docs/{page}.md").read_text() for page in ("algorithms", "architecture", "limits")
)
PAGES = "\n".join(
    page.read_text()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.stem != "troubleshooting"  # which names files that are missing on purpose
)


def test_tree_lists_every_part_of_the_package():
    tree = ARCHITECTURE.partition("## The tree")[2].partition("```")[2].partition("```")[0]
    listed = set(re.findall(r"^  (\S+)", tree, re.M))
    parts = {
        path.name + ("/" if path.is_dir() else "")
        for path in (ROOT / "jaxrl_single").iterdir()
        if not path.name.startswith(("__", "."))
    }
    assert listed == parts


def test_files_that_are_named_exist():
    step = ARCHITECTURE.partition("## One step")[2].partition("```")[2].partition("```")[0]
    for name in re.findall(r"\b[a-z_]+(?:/[a-z_]+)*\.py\b", step):
        assert (ROOT / "jaxrl_single" / name).is_file(), name
    prose = re.sub(r"```python.*?```", "", PAGES, flags=re.S)  # which names files to be made
    for name in re.findall(r"\b(?:launch|configs|benchmarks)/[a-z_]+\.(?:py|sh)\b", prose):
        assert (ROOT / name).is_file(), name


def test_readme_is_short_and_links_every_page():
    assert len(README.encode()) <= 8192
    linked = set(re.findall(r"\]\(docs/([a-z_]+)\.md\)", README))
    assert linked == {path.stem for path in (ROOT / "docs").glob("*.md")}
    for link in re.findall(r"\]\(([^):]+)\)", README):
        assert (ROOT / link).is_file(), link
    for path in (ROOT / "docs").glob("*.md"):
        for link in re.findall(r"\]\(([a-z0-9_/.]+\.(?:md|png))\)", path.read_text()):
            assert (path.parent / link).is_file(), (path.name, link)


def test_table_of_algorithms_is_the_generated_one():
    section = ALGORITHMS.partition("<!-- python -m jaxrl_single.run.table -->")[2]
    assert section.partition("<!--")[0].strip() == table_command.markdown()


def test_rows_without_a_config_are_named():
    rollouts = LIMITS.partition("- Rollouts are independent")[2]
    named = set(re.findall(r"`([a-z_]+)`", rollouts.partition("\n- ")[0]))
    assert named == {n for n in table.TABLE if not (ROOT / f"configs/tiny_{n}.py").is_file()}


def test_worked_example_of_a_new_algorithm_runs_as_written(monkeypatch):
    example = ALGORITHMS.partition("## Add an algorithm")[2].partition("```python\n")[2]
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
