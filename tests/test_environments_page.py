"""docs/environments.md: every snippet runs as it is written, in an empty folder."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_every_snippet_of_the_page_runs(tmp_path):
    pytest.importorskip("reasoning_gym", reason="needs the extra envs")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    told = []
    for language, text in BLOCK.findall((ROOT / "docs" / "environments.md").read_text()):
        if language == "python":
            (tmp_path / text.split()[1]).write_text(text)
            continue
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        told.append(done.stdout)
    guessed, _, imitated = told
    assert "warm start: none, RL starts from a model of random weights" in guessed
    assert "demonstrations: guesses.jsonl: 2 conversations to imitate" in imitated
    lines = (tmp_path / "runs" / "guess" / "metrics.jsonl").read_text().splitlines()
    assert any("env/guesses" in json.loads(line) for line in lines)
