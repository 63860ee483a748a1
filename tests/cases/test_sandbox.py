"""Code of a model: what it raises is an observation, and what is not its own is out of reach."""

import asyncio
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

from jaxrl_single.envs import python_tool, tool_table
from jaxrl_single.envs.sandbox import isolation, limits, pool

ROOT = pathlib.Path(__file__).parents[2]
LIMITS = limits.Limits(memory_mb=512, processes=8, cpu_s=60, file_mb=8, output_chars=4000)


@pytest.fixture(scope="module")
def interpreters():
    try:
        made = pool.Pool(isolation.choose("auto"), LIMITS, spares=1)
    except isolation.NoIsolation as error:
        pytest.skip(str(error))
    yield made
    made.close()


def _call(interpreters, *codes):
    """Observations of the Python tool, as they go to a tokenizer and into records."""
    tool = python_tool.PythonTool(interpreters, seed=0, timeout_s=5.0)

    async def play():
        try:
            return [await tool.call({"code": code}) for code in codes]
        finally:
            await tool.close()

    observations = asyncio.run(play())
    for one in observations:
        one.encode()
    return observations


_RAISED = {
    "raise ValueError('\\ud800')": r"(?s)Traceback .*ValueError: \?",
    "import sys\nsys.exit('x' * 200_000)": f"x{{{LIMITS.output_chars}}}",
    "import sys\nsys.exit('\\ud800')": r"\?",
    "class E(SystemExit):\n    code = property(lambda self: 1 / 0)\nraise E": "(?s).*ZeroDiv.*",
}


@pytest.mark.parametrize("code", _RAISED)
def test_c14_what_code_raises_is_an_observation_and_variables_stay(interpreters, code):
    _, raised, kept = _call(interpreters, "kept = 41", code, "kept + 1")
    assert re.fullmatch(_RAISED[code], raised)
    assert kept == "42"


_ANSWERS = ["b'[' * 100_000", "b'{\"run\":1,\"output\":' + b'[' * 90_000"]


@pytest.mark.parametrize("data", _ANSWERS)
def test_c14_a_forged_answer_on_the_socket_is_an_observation(interpreters, data):
    forged = f"""
import os, struct
data = {data}
for number in range(3, 20):
    try: os.write(number, struct.pack(">I", len(data)) + data)
    except OSError: pass
"""
    lost, after = _call(interpreters, forged, "1 + 1")
    assert "all variables are lost" in lost
    assert after == "2"


_KEYCTL = """
import ctypes
libc = ctypes.CDLL(None)
key = libc.syscall(248, b"user", b"left", b"text", 4, -3)
[key > 0, libc.syscall(250, 0, -3, 0) > 0, libc.syscall(249, b"user", b"left", None, -3) > 0]
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
def test_c15_no_keyring_is_within_reach(interpreters):
    assert _call(interpreters, _KEYCTL) == ["[False, False, False]"]


_FILL = """
import socket
def fill():
    held = []
    try:
        while True:
            one, other = socket.socketpair()
            held += [one, other]
            one.setblocking(False)
            with_size(one)
            try:
                while True: one.send(bytes(65536))
            except BlockingIOError:
                pass
    except OSError:
        return held
def with_size(one):
    try: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
    except OSError: pass
held = fill()
room = sum(one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for one in held)
print(len(held), room >> 20)
"""


def test_c16_buffers_of_sockets_are_bounded(interpreters):
    (answer,) = _call(interpreters, _FILL)
    number, room_mb = map(int, answer.split())
    assert number <= 64
    assert room_mb <= 32  # 512 at the commit before, of which the system fills twice as much


def test_c17_tasks_cannot_be_looked_up_and_judges_not_be_asked(interpreters):
    pytest.importorskip("reasoning_gym", reason="needs the extra envs")
    names = ("reasoning_gym", "math_verify", "jaxrl_single", "jaxrl_single.envs.judge", "pytest")
    found = f"""
import importlib
found = []
for name in {names}:
    try:
        importlib.import_module(name)
        found.append(name)
    except ImportError:
        pass
found
"""
    assert _call(interpreters, found, "import fractions, decimal\n'fine'") == ["[]", "'fine'"]


def _tasks(seed):
    section = {"dataset": "chain_sum", "dataset_options": {}, "tasks_file": ""}
    section["eval_tasks_file"] = ""
    splits = (tool_table.make_tasks(section, split, seed) for split in ("train", "eval"))
    return [{tasks[index].question for index in range(200)} for tasks in splits]


def test_c17_seeds_of_tasks_come_from_the_run():
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra envs")
    train, held_out = _tasks(seed=3)
    assert not train & held_out
    assert (train, held_out) == tuple(_tasks(seed=3))
    tasks = tool_table.make_tasks(
        {"dataset": "chain_sum", "dataset_options": {}, "tasks_file": "", "eval_tasks_file": ""},
        "train",
        3,
    )
    public = gym.create_dataset("chain_sum", seed=0, size=1_000_000)
    looked_up = [public[tasks[n].data["place"]]["question"] == tasks[n].question for n in range(20)]
    assert not any(looked_up)


_REFUSED = f"""
import ctypes, fcntl, os, socket
libc = ctypes.CDLL(None, use_errno=True)
got = []
if libc.syscall(425, 8, ctypes.create_string_buffer(256)) >= 0: got.append("io_uring")
for family, kind in ((40, 1), (38, 5), (16, 2), (17, 2)):  # vsock, algorithms, netlink, packets
    try:
        socket.socket(family, kind)
        got.append(f"family {{family}}")
    except OSError: pass
shared = open({os.__file__!r})
for lock in (fcntl.flock, fcntl.lockf):
    try:
        lock(shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
        got.append(lock.__name__)
    except OSError: pass
got
"""


def test_c18_calls_without_use_are_refused(interpreters):
    assert _call(interpreters, _REFUSED) == ["[]"]
    with open(os.__file__) as shared:
        fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)


_LOOK = """
import asyncio, sys
from jaxrl_single.envs.sandbox import isolation, limits, pool
made = pool.Pool(isolation.choose("auto"), limits.Limits(), spares=0)
async def look():
    async with made.interpreter() as python:
        code = "import os\\nos.listdir('/tmp'), os.getcwd(), os.listdir('.'), os.environ['HOME']"
        return (await python.run(code, 5.0)).output
print(asyncio.run(look()), end="")
made.close()
"""


def test_c37_tmp_is_empty_wherever_the_checkout_and_its_packages_lie(interpreters):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="Prüfung an ") as folder:
        shutil.copytree(ROOT / "jaxrl_single", pathlib.Path(folder, "jaxrl_single"))
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", f"{folder}/.venv"], check=True
        )
        done = subprocess.run(
            [f"{folder}/.venv/bin/python", "-B", "-c", _LOOK],
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    assert re.sub(r"\s+", " ", done.stdout) == "([], '/tmp', [], '/tmp') ", done.stderr
