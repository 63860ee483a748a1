"""What the documents tell a reader to paste runs as it is written."""

import json
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import pytest

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


@pytest.mark.parametrize("name", ["01_quickstart", "02_algorithms"])
def test_c29_a_notebook_without_a_copy_asks_for_one(name, tmp_path):
    """It was StopIteration, in the first cell of a machine without a clone."""
    cells = json.loads((ROOT / "colab" / f"{name}.ipynb").read_text())["cells"]
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    command = [sys.executable, "-c", first]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert "fill in REPOSITORY" in done.stderr
