"""What the documents tell a reader to paste runs as it is written."""

import pathlib

import jax.numpy as jnp

from jaxrl_single.algorithms import parts, table

ROOT = pathlib.Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs/algorithms.md")  # it was in the README once


def test_c36_the_example_of_a_new_algorithm_runs_as_written(monkeypatch):
    """It was NameError: its pieces took their imports from the files they belong to."""
    text = "".join(page.read_text() for page in PAGES if page.is_file())
    section = text.partition("# Add an algorithm\n")[2]
    monkeypatch.setitem(parts.KEEP_RULES, "ceiling", None)
    monkeypatch.setitem(table.TABLE, "capped", None)
    example = section.partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(example.partition("# jaxrl_single/algorithms/parts.py")[0], names)  # its first file
    mask = jnp.array([True, True])
    assert names["ceiling"](jnp.array([0.0, 1.0]), mask, limit=2.0).tolist() == [1.0, 0.0]
    exec(example, {})
