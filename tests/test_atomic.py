"""Files that come whole or not at all, and what killed writers leave."""

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest

from jaxrl_single import atomic


def test_temporaries_of_the_dead_go(tmp_path):
    code = "import sys, os; print(os.getpid())"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    names = [f"{atomic.PREFIX}{pid}-0-x" for pid in (dead.strip(), os.getpid())]
    for name in [*names, "kept.json", ".tmp-elsewhere-1-0-x"]:
        (tmp_path / name).write_text("")
    assert atomic.remove_temporaries(tmp_path, of="y") == []
    assert [path.name for path in atomic.remove_temporaries(tmp_path)] == [names[0]]
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_replaced_is_whole_or_as_it_was(tmp_path):
    target = tmp_path / "out-1.txt"
    with atomic.replacing(target) as writing:
        writing.write_text("old")
        assert not target.exists()
    with contextlib.suppress(RuntimeError), atomic.replacing(target) as writing:
        writing.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    (tmp_path / "link").symlink_to(target)
    with atomic.replacing(tmp_path / "link") as writing:
        writing.write_text("new")
    assert target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out-1.txt"]
    with atomic.replacing("/dev/null") as writing:
        assert writing == pathlib.Path("/dev/null")
    with pytest.raises(FileNotFoundError, match=r"there is no such directory: '.*/none'"):
        atomic.replacing(tmp_path / "none" / "x").__enter__()


def test_what_a_killed_writer_left_of_a_name_goes_with_the_next(tmp_path):
    code = (
        "import os, sys; from jaxrl_single import atomic\n"
        "blocks = [atomic.replacing(f'{sys.argv[1]}/{name}') for name in ('out', 'other')]\n"
        "for block in blocks:\n"
        "    path = block.__enter__()\n"
        "    path.mkdir(); (path / 'part').write_text('half')\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert len(list(tmp_path.iterdir())) == 2
    with atomic.replacing(tmp_path / "out") as writing:
        writing.mkdir()
    assert [path.name.rpartition("-")[2] for path in sorted(tmp_path.iterdir())] == ["other", "out"]
