"""Where things lie behind the walls, wherever they are installed."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
import sandbox_lab

from jaxrl_single.envs.sandbox import isolation

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture
def interpreters():
    made = sandbox_lab.isolated_pool()
    yield made
    made.close()


def test_what_is_installed_in_tmp_is_seen_but_not_its_neighbours(interpreters, monkeypatch):
    seen = isolation.view()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        shown, hidden = (pathlib.Path(folder, name) for name in ("shown", "hidden"))
        for place in (shown, hidden):
            place.mkdir()
            (place / "file").write_text("text")
        more = dataclasses.replace(seen, paths=(*seen.paths, str(shown)))
        monkeypatch.setattr(isolation, "view", lambda **_: more)
        read = f"import os\nopen('{shown}/file').read(), os.listdir('{folder}')"
        write = f"open('{shown}/file', 'w')"
        shows, refused = sandbox_lab.run(interpreters, read, write)
    assert shows.output == "('text', ['shown'])\n"
    assert refused.error.startswith("Traceback")
    assert (
        "OSError: [Errno 30] Read-only file system" in refused.error
        or "Permission" in refused.error
    )


def test_python_that_is_installed_in_tmp_is_seen_elsewhere(monkeypatch):
    prefix = pathlib.Path(sys.base_prefix).resolve()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for name in ("bin", "lib"):
            pathlib.Path(folder, name).mkdir()
        monkeypatch.setattr(sys, "base_prefix", folder)
        seen = isolation.view()
    assert seen.moved["/python/lib"] == f"{folder}/lib"
    assert seen.inside(f"{folder}/lib/python3.11") == "/python/lib/python3.11"
    assert not [path for path in seen.paths if path.startswith(("/tmp", str(prefix)))]


_FROM_TMP = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from jaxrl_single.envs.sandbox import isolation, limits, pool
made = pool.Pool(isolation.choose({kind!r}), limits.Limits(), spares=0)
code = '''import os, subprocess, sys, xml.dom.minidom
program = [sys.executable, '-c', 'import ssl, sys; print(sys.version)']
child = subprocess.run(program, capture_output=True, text=True)
print([os.listdir('/tmp'), os.getcwd(), sys.executable, child.stdout.strip(), child.stderr])'''
async def play():
    async with made.interpreter() as python:
        result = await python.run(code, 20.0)
        print(result.output + result.error)
asyncio.run(play())
made.close()
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["namespaces", "bubblewrap"])
def test_an_interpreter_that_is_installed_in_tmp_leaves_tmp_empty(kind):
    try:
        isolation.choose(kind)
    except isolation.NoIsolation as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="Prüfung an ") as folder:
        python = pathlib.Path(sys.base_prefix).resolve()
        not_needed = shutil.ignore_patterns("site-packages", "test", "*.a", "__pycache__", "share")
        shutil.copytree(python, f"{folder}/python", symlinks=True, ignore=not_needed)
        python = f"{folder}/python/bin/python3.{sys.version_info.minor}"
        done = subprocess.run(
            [python, "-B", "-c", _FROM_TMP.format(root=str(ROOT), kind=kind)],
            env={**os.environ, "LD_LIBRARY_PATH": f"{folder}/python/lib"},
            capture_output=True,
            text=True,
            check=False,
        )
    place = f"/python/bin/python3.{sys.version_info.minor}"
    expected = [[], "/tmp", place, sys.version, ""]
    assert done.stdout.strip() == str(expected), done.stderr
