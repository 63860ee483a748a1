"""The pool: many interpreters at once, apart from each other, replaced when they fail, all gone."""

import asyncio
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest
import sandbox_lab

from jaxrl_single.envs import python_tool
from jaxrl_single.envs.sandbox import isolation, limits, pool, spawners, walls

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture
def interpreters():
    made = sandbox_lab.isolated_pool(preload=("statistics",))
    yield made
    made.close()


def test_variables_live_from_run_to_run(interpreters):
    results = sandbox_lab.run(
        interpreters, "def double(x):\n    return 2 * x\ny = 4", "double(y)", "y = double(y)", "y"
    )
    assert [result.output for result in results] == ["", "8\n", "", "8\n"]
    assert {result.outcome for result in results} == {"done"}


def test_error_shows_the_lines_of_the_code_and_what_was_printed_before(interpreters):
    result = sandbox_lab.run_one(interpreters, "print('so far')\ndef f():\n    1 / 0\nf()")
    assert result.output == "so far\n"
    lines = result.error.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == '  File "<code 1>", line 4, in <module>'
    assert "    1 / 0" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert str(ROOT) not in result.error


@pytest.mark.parametrize(
    ("code", "outcome", "output", "error"),
    [
        ("", "done", "", ""),
        ("1; 2", "done", "2\n", ""),
        ("None", "done", "", ""),
        ("import sys\nprint('a')\nsys.exit()", "done", "a\n", ""),
        ("import sys\nsys.exit('no')", "error", "", "no"),
        (
            "import sys, os\nprint(1)\nos.system('echo 2')\nprint(3, file=sys.stderr)",
            "done",
            "1\n",
            "",
        ),
        ("input()", "error", "", "EOFError: EOF when reading a line"),
        (
            "class E(Exception):\n    def __str__(self): 1/0\nraise E",
            "error",
            "",
            "E: <exception str",
        ),
    ],
)
def test_outcomes(interpreters, code, outcome, output, error):
    result = sandbox_lab.run_one(interpreters, code)
    assert result.outcome == outcome
    assert result.output.startswith(output)
    assert error in result.error
    assert result.kept


def test_output_of_children_stays_in_order(interpreters):
    code = "import os, sys\nprint(1)\n_ = os.system('echo 2')\nprint(3, file=sys.stderr)\nprint(4)"
    assert sandbox_lab.run_one(interpreters, code).output == "1\n2\n3\n4\n"


def test_long_output_keeps_head_and_tail(interpreters):
    output = sandbox_lab.run_one(interpreters, "for n in range(10000): print(n)").output
    assert output.startswith("0\n1\n2\n")
    assert output.endswith("9998\n9999\n")
    assert "bytes left out]" in output


def test_64_episodes_at_once_do_not_see_each_other(interpreters):
    async def episode(number):
        async with interpreters.interpreter(seed=number % 2) as python:
            await python.run(f"mine = {number}\nopen('mine', 'w').write(str(mine))")
            await asyncio.sleep(0)
            result = await python.run(
                "import os, random\n"
                "print(mine, open('mine').read(), os.listdir('.'), random.random())",
                timeout_s=30.0,
            )
            return result.output.split()

    async def all_episodes():
        return await asyncio.gather(*(episode(number) for number in range(64)))

    shown = asyncio.run(all_episodes())
    for number, words in enumerate(shown):
        assert words[:3] == [str(number), str(number), "['mine']"]
    assert len({words[3] for words in shown}) == 2, "random numbers follow the seed"


def test_more_episodes_than_places_wait_for_one():
    made = sandbox_lab.isolated_pool(size=2, spares=0)
    at_once = []

    async def episode():
        async with made.interpreter() as python:
            await python.run("1")
            at_once.append(made.gate.here()._value)
            return (await python.run("1 + 1")).output

    async def all_episodes():
        return await asyncio.gather(*(episode() for _ in range(6)))

    assert asyncio.run(all_episodes()) == ["2\n"] * 6
    assert 0 <= min(at_once) <= max(at_once) < 2
    made.close()


def test_pool_serves_one_event_loop_after_the_other(interpreters):
    for _ in range(3):
        assert sandbox_lab.run_one(interpreters, "1 + 1").output == "2\n"


def test_preloaded_modules_are_there(interpreters):
    code = "import sys\n'statistics' in sys.modules, 'sqlite3' in sys.modules"
    assert sandbox_lab.run_one(interpreters, code).output == "(True, False)\n"


def test_installed_packages_can_be_imported(interpreters):
    code = "import numpy\nprint(numpy.arange(4).sum())"
    assert sandbox_lab.run_one(interpreters, code, timeout_s=30.0).output == "6\n"


def test_death_of_the_zygote_loses_variables_and_nothing_else(interpreters):
    async def play():
        async with interpreters.interpreter() as python:
            await python.run("x = 1")
            os.kill(interpreters._spawner._process.pid, signal.SIGKILL)
            while (lost := await python.run("x")).outcome == "done":
                await asyncio.sleep(0.01)  # death takes a moment
            return lost, await python.run("1 + 1")

    lost, after = asyncio.run(play())
    assert (lost.outcome, lost.kept) == ("died", False)
    assert after.output == "2\n"


def test_end_of_an_episode_ends_its_processes():
    interpreters = sandbox_lab.isolated_pool(spares=0)
    sandbox_lab.run_one(interpreters, "1")
    before = sandbox_lab.children()

    async def cancelled():
        async with interpreters.interpreter() as python:
            task = asyncio.create_task(python.run("import time\ntime.sleep(60)", 60.0))
            await asyncio.sleep(0.2)
            task.cancel()

    asyncio.run(cancelled())
    sandbox_lab.wait_until(lambda: sandbox_lab.children() <= before)
    interpreters.close()


def test_close_leaves_nothing_behind():
    files = set(os.listdir(tempfile.gettempdir()))
    before = sandbox_lab.children()
    made = sandbox_lab.isolated_pool()
    sandbox_lab.run_one(made, "import os\nopen('file', 'w')\nif os.fork() == 0:\n    os.setsid()")
    assert sandbox_lab.children() > before
    made.close()
    made.close()
    sandbox_lab.wait_until(lambda: sandbox_lab.children() == before)
    assert not {
        name for name in set(os.listdir(tempfile.gettempdir())) - files if "python_tool" in name
    }


_ENDLESS = """
import asyncio, sys
sys.path.insert(0, {root!r})
from jaxrl_single.envs.sandbox import isolation, limits, pool
made = pool.Pool(isolation.choose({name!r}), limits.Limits())
async def play():
    async with made.interpreter() as python:
        await python.run("1")
        print("running", flush=True)
        await python.run("max(range(10**15))", 600)
asyncio.run(play())
"""


@pytest.mark.parametrize("name", ["auto", "none"])
def test_kill_of_the_rollout_process_leaves_no_process_behind(name, tmp_path):
    if name == "auto":
        sandbox_lab.isolated_pool().close()
    code = _ENDLESS.format(root=str(ROOT), name=name)
    # Without isolation there are folders, which nobody is left to delete.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "running\n"
    started = sandbox_lab.children(process.pid)
    assert started
    process.kill()
    process.wait()
    sandbox_lab.wait_until(lambda: not any(_runs(pid) for pid in started))


def _runs(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # of a zombie only the number is left, until its new parent looks


def test_what_cannot_be_started_is_a_fault_of_the_machine(interpreters, monkeypatch):
    monkeypatch.setattr(isolation, "view", lambda **_: walls.View(("/usr", "/nowhere"), {}))
    with pytest.raises(pool.SandboxError, match=r"can't be started: FileNotFoundError.*nowhere"):
        sandbox_lab.run_one(interpreters, "1")


def test_a_spare_ends_if_no_other_can_be_started(interpreters, monkeypatch):
    def refused(number, sock):
        raise OSError("too many open files")

    sandbox_lab.run_one(interpreters, "1")
    spares = list(interpreters._spares)
    monkeypatch.setattr(interpreters._spawner, "start", refused)
    with pytest.raises(pool.SandboxError, match="too many open files"):
        sandbox_lab.run_one(interpreters, "1")
    assert spares
    assert [spare._sock.fileno() for spare in spares] == [-1] * len(spares)


def test_without_isolation_only_if_told_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(isolation, "_failure", lambda name: "not here")
    with pytest.raises(isolation.NoIsolation, match=r"bubblewrap: not here.*env.sandbox=none"):
        isolation.choose("auto")
    with pytest.raises(ValueError, match=r"env\.sandbox is 'chroot', allowed are"):
        isolation.choose("chroot")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SANDBOX_TEST_SECRET", "swordfish")
    chosen = isolation.choose("none")
    isolation.announce(chosen)
    assert "none at all" in caplog.text
    made = pool.Pool(chosen, sandbox_lab.LIMITS)
    first, place, packages, environment, hung, after = sandbox_lab.run(
        made,
        "x = 1",
        "import os\nos.getcwd()",
        "import importlib.util as i\n[i.find_spec(n) is None for n in ('numpy', 'pytest')]",
        "dict(os.environ)",
        "max(range(10**12))",
        "1 + 1",
        timeout_s=1.0,
    )
    assert first.outcome == "done"
    assert str(tmp_path) in place.output
    assert packages.output == "[False, True]\n"
    assert "swordfish" not in environment.output
    assert (hung.outcome, hung.kept) == ("timeout", False)
    assert after.output == "2\n"
    made.close()
    assert not list(tmp_path.iterdir())


_AS_USER = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from jaxrl_single.envs.sandbox import isolation, limits, pool
made = pool.Pool(isolation.choose("auto"), limits.Limits(processes=8))
async def play():
    async with made.interpreter() as python:
        for code in {codes!r}:
            result = await python.run(code, 2.0)
            print((result.outcome, result.output, result.error[-80:]))
asyncio.run(play())
made.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="as an ordinary user all tests here are that test")
def test_an_ordinary_user_has_the_same_walls():
    python = shutil.which("python3", path="/usr/bin:/bin")
    needed = [
        python or "python3",
        "-c",
        "import sys, json, ctypes; sys.exit(sys.version_info < (3, 11))",
    ]
    if python is None or subprocess.run(needed, check=False).returncode:
        pytest.skip("root's own Python can't be read by others, and the system has none for them")
    codes = [
        "import os; os.getuid(), os.getpid()",
        "open('/etc/passwd')",
        "open('/written_by_a_test', 'w')",
        "import ctypes; ctypes.CDLL(None).unshare(0x10000000)",
        "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
        "while True: os.fork()",
        "while True: pass",
        "[name for name in os.listdir('/proc') if name.isdigit()]",
    ]
    done = subprocess.run(
        [python, "-B", "-c", _AS_USER.format(root=str(ROOT), codes=codes)],
        user=54321,
        group=54321,
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if "NoIsolation" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    results = [eval(line) for line in done.stdout.splitlines()]
    assert [result[0] for result in results] == [
        "done", "error", "error", "done", "error", "error", "timeout", "done",
    ]  # fmt: skip
    assert results[0][1] in ("(65534, 1)\n", "(54321, 2)\n")  # namespaces, bubblewrap
    assert "No such file" in results[1][2]
    assert "Read-only file system" in results[2][2]
    assert results[3][1] == "-1\n"
    assert "unreachable" in results[4][2]
    assert set(eval(results[7][1])) <= {"1", "2"}


def test_view_never_holds_the_home_directory(monkeypatch):
    monkeypatch.setattr(sys, "base_prefix", str(pathlib.Path.home().parent))
    with pytest.raises(isolation.NoIsolation, match="holds the home directory"):
        isolation.view()


@pytest.mark.parametrize("name", ["memory_mb", "processes", "cpu_s", "file_mb", "output_chars"])
def test_limits_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} of a sandbox is 0"):
        limits.Limits(**{name: 0})


def test_tool_says_what_happened(interpreters):
    tool = python_tool.PythonTool(interpreters, seed=0, timeout_s=1.0)

    async def play():
        codes = ["x = 1", "print(x)\n1 / 0", "while True: pass", "max(range(10**12))", "x"]
        answers = [await tool.call({"code": code}) for code in codes]
        await tool.close()
        return answers

    quiet, failed, stopped, killed, lost = asyncio.run(play())
    assert quiet == "[no output]"
    assert failed.startswith("1\nTraceback")
    assert failed.endswith("ZeroDivisionError: division by zero")
    assert stopped == "[stopped after 1 seconds]"
    assert killed == "[stopped after 1 seconds; all variables are lost]"
    assert lost.endswith("NameError: name 'x' is not defined")


def test_spawner_of_each_isolation():
    kinds = {
        name: type(spawners.make(isolation._ALL[name], sandbox_lab.LIMITS, ()))
        for name in isolation._ALL
    }
    assert kinds == {
        "bubblewrap": spawners.CommandSpawner,
        "namespaces": spawners.ZygoteSpawner,
        "none": spawners.CommandSpawner,
    }
