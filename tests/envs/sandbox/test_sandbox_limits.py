"""Attempts to take more time, memory, processes or output than there is, and to live on."""

import contextlib
import pathlib
import textwrap
import time

import pytest
import sandbox_lab as lab

pytestmark = pytest.mark.usefixtures("others_run_on")
ALL = "for n in range(3, 20):\n"  # descriptors that may be the socket to the outside


def _names_of_processes():
    names = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            names.add(path.read_text())
    return names


def test_files_have_a_limit_each_and_together(interpreters):
    one = "file = open('big', 'wb')\nfor _ in range(100):\n    file.write(bytes(10**6))"
    lab.fails(interpreters, one, "OSError: [Errno 27]", "OSError: [Errno 28]")
    many = """
        for number in range(100):
            with open(str(number), 'wb') as file:
                file.write(bytes(10**6))
    """
    lab.fails(interpreters, many, "OSError: [Errno 28]")
    # Bubblewrap bounds the number of files by the time only.
    files = "for n in range(10**9):\n    open(f'f{n}', 'w').close()"
    assert lab.attempt(interpreters, files, timeout_s=2.0).outcome in ("error", "timeout")
    lab.fails(
        interpreters, "kept = [open('/dev/null') for _ in range(10**4)]", "OSError: [Errno 24]"
    )


def test_fork_bomb(interpreters):
    result = lab.attempt(interpreters, "import os\nwhile True:\n    os.fork()", timeout_s=2.0)
    assert result.outcome in ("error", "timeout", "died")
    # The zygote, and of the next interpreter no more than three processes.
    lab.wait_until(lambda: len(lab.children()) <= 1 + 3 * lab.SPARES)
    lab.fails(
        interpreters,
        "import subprocess\nkept = [subprocess.Popen(['sleep', '60']) for _ in range(50)]",
        "BlockingIOError: [Errno 11]",
    )


def test_child_of_the_code_does_not_answer_for_it(interpreters):
    twice = "import os\npid = os.fork()\nif pid == 0: raise ValueError\nos.waitpid(pid, 0)[1]"
    bomb = "while True: os.fork()"
    results = lab.run(interpreters, twice, "1", bomb, "2", "pid == 0", timeout_s=2.0)
    assert [result.output for result in results] == ["0\n", "1\n", "", "2\n", "False\n"]


def test_thread_bomb(interpreters):
    code = """
        import threading, time
        for _ in range(100):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    """
    lab.fails(interpreters, code, "RuntimeError: can't start new thread")


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(10**11)",
        "kept = []\nwhile True:\n    kept.append(bytearray(10**7))",
        "x = 'a'\nwhile True:\n    x += x",
    ],
)
def test_memory_bomb(interpreters, code):
    bomb, after = lab.run(interpreters, code, "kept = x = None\n1 + 1")
    assert bomb.outcome == "error"
    assert bomb.error.endswith("MemoryError")
    assert after.output == "2\n"


@pytest.mark.parametrize(
    "call",
    [
        "os.memfd_create('x')",
        "libc.syscall(447, 0)",  # memfd_secret
        "libc.shmget(0, 2**20, 0o1600)",
        "libc.semget(0, 1, 0o1600)",
        "libc.msgget(0, 0o1600)",
    ],
)
def test_memory_that_is_not_mapped_cannot_be_had(interpreters, call):
    code = f"""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        if {call} < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    """
    lab.fails(interpreters, code, "OSError: [Errno 38]")


def test_endless_loop_keeps_the_variables(interpreters):
    _, loop, after = lab.run(interpreters, "x = 5", "while True: pass", "x", timeout_s=1.0)
    assert (loop.outcome, loop.kept) == ("timeout", True)
    assert after.output == "5\n"


@pytest.mark.parametrize(
    "code",
    [
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass",
        "max(range(10**12))",  # in C, where no signal handler runs
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
    ],
)
def test_endless_loop_that_resists_is_ended(interpreters, code):
    loop, after = lab.run(interpreters, code, "'code' in dir()", timeout_s=1.0)
    assert (loop.outcome, loop.kept) == ("timeout", False)
    assert after.output == "False\n"


def test_nothing_survives_its_end(interpreters):
    """Not even code that would not die with its parent, and has a name by which it is found."""
    code = """
        import ctypes, signal, time
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        libc = ctypes.CDLL(None)
        libc.prctl(1, 0)
        libc.prctl(2**32 + 1, 0)
        libc.prctl(15, b"survivor")
        while True: time.sleep(1)
    """
    assert lab.attempt(interpreters, code, timeout_s=1.0).outcome == "timeout"
    assert pathlib.Path("/proc/self/comm").read_text() in _names_of_processes()
    deadline = time.monotonic() + 10.0
    while "survivor\n" in _names_of_processes():  # until the system has cleared it away
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    "code",
    [
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.write(1, b'x' * 1000)",
        "import os\nwhile True: os.write(2, b'x' * 1000)",
        "import subprocess\nsubprocess.run(['yes'])",
        "raise ValueError('x' * 10**6)",
        "print('\\ud800' * 10**5)",
    ],
)
def test_endless_output_is_cut(interpreters, code):
    result = lab.attempt(interpreters, code, timeout_s=3.0)
    assert result.outcome in ("error", "timeout", "done")
    assert len(result.output) < 2 * lab.LIMITS.output_chars
    assert len(result.error) <= lab.LIMITS.output_chars


def test_children_end_with_the_run_and_leave_no_zombies(interpreters):
    started = """
        import os, subprocess
        for _ in range(3):
            subprocess.Popen(["sleep", "300"], start_new_session=True)
        if os.fork() == 0:
            os.fork()
            os._exit(0)
    """
    seen = "import os\n[name for name in os.listdir('/proc') if name.isdigit()]"
    _, after = lab.run(interpreters, textwrap.dedent(started), seen)
    assert set(eval(after.output)) <= lab.OURS


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)",
        "import ctypes\nctypes.string_at(0)",
        "import os, signal\nos.abort()",
        f"import os\n{ALL}    try: os.close(n)\n    except OSError: pass",
        # Nonsense in the place of an answer: not JSON, far too long, and no object.
        f"import os\n{ALL}    try: os.write(n, b'\\0\\0\\0\\x02{{{{')\n    except OSError: pass",
        f"import os\n{ALL}    try: os.write(n, b'\\xff' * 64)\n    except OSError: pass",
        f"import os\n{ALL}    try: os.write(n, b'\\0\\0\\0\\x0217')\n    except OSError: pass",
    ],
)
def test_interpreter_that_breaks_itself_is_replaced(interpreters, code):
    broken, after = lab.run(interpreters, code, "1 + 1", timeout_s=2.0)
    assert (broken.outcome, broken.kept) in (("died", False), ("timeout", False))
    assert after.output == "2\n"


def test_deep_recursion_is_an_error(interpreters):
    lab.fails(interpreters, "def f(): return f()\nf()", "RecursionError")


def test_cpu_time_has_a_limit_over_all_runs(interpreters):
    code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU))\n"
    code += "resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))"
    result = lab.attempt(interpreters, code)
    assert result.output == "(20, 20)\n"
    assert "not allowed to raise maximum limit" in result.error
