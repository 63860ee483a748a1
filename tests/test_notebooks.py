"""The notebooks: short, without outputs and algorithm code, and their cells run."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))
SHRUNK = {
    '"configs/tiny_sao.py"': '"configs/tiny_sao.py:tiny"',
    '"runs/quickstart"': "os.environ['NOTEBOOK_WORKDIR']",
    "NUM_STEPS = 60": "NUM_STEPS = 2",
}


def cells(path, kind=None):
    found = json.loads(path.read_text())["cells"]
    return [cell for cell in found if kind in (None, cell["cell_type"])]


def test_both_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["01_quickstart", "02_algorithms"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_short_and_cleared(path):
    assert json.loads(path.read_text())["nbformat"] == 4
    assert len(cells(path)) <= 30
    assert len({cell["id"] for cell in cells(path)}) == len(cells(path))
    for cell in cells(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert "jax." not in "".join(cell["source"]), "algorithms belong into the package"


def program(path):
    """The code cells one after the other, on the smallest run."""
    text = "\n".join("".join(cell["source"]) for cell in cells(path, "code"))
    for long, short in SHRUNK.items():
        assert ("01" not in path.stem) or long in text, long
        text = text.replace(long, short)
    return text


def run_cells(path, tmp_path, text, *, python, cwd, **env):
    script = tmp_path / "cells.py"
    script.write_text(text)
    env = {**os.environ, "MPLBACKEND": "Agg", "NOTEBOOK_WORKDIR": str(tmp_path / "run"), **env}
    done = subprocess.run(
        [python, str(script)],
        cwd=cwd,
        env=env | {"XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    expected = "reward" if "01" in path.stem else "same sign as sao"
    assert expected in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run(path, tmp_path):
    env = {"PYTHONPATH": str(ROOT)}
    run_cells(path, tmp_path, program(path), python=sys.executable, cwd=ROOT, **env)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run_on_a_machine_without_a_copy(path, tmp_path):
    """An empty folder and an empty environment: the first cell fetches and installs."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    text = program(path)
    assert 'REPOSITORY = ""' in text
    text = text.replace('REPOSITORY = ""', f"REPOSITORY = {str(ROOT)!r}")
    (tmp_path / "empty").mkdir()
    python = str(tmp_path / "venv" / "bin" / "python")
    run_cells(path, tmp_path, text, python=python, cwd=tmp_path / "empty", PYTHONPATH="")


def test_without_a_copy_the_first_cell_asks_for_one(tmp_path):
    cell = "".join(cells(NOTEBOOKS[0], "code")[0]["source"])
    done = subprocess.run(
        [sys.executable, "-c", cell], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert done.stderr.strip() == (
        "There is no copy of the repository here: fill in REPOSITORY above."
    )
