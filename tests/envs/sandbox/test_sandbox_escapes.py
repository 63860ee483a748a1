"""Attempts to break out of the sandbox: none succeeds, each ends in time, the next code runs."""

import os
import pathlib
import shutil
import socket
import sys
import textwrap

import pytest
import sandbox_lab

SECRET = "swordfish-7431"
KINDS = ["namespaces", "bubblewrap"] if shutil.which("bwrap") else ["namespaces"]
SPARES = 1
OURS = {"1", "2"}  # process ids of the interpreter, or of bubblewrap and the interpreter
ALL = "for n in range(3, 20):\n"  # descriptors that may be the socket to the outside


@pytest.fixture(scope="module", params=KINDS)
def interpreters(request):
    os.environ["SANDBOX_TEST_SECRET"] = SECRET
    pool = sandbox_lab.isolated_pool(request.param, spares=SPARES)
    yield pool
    pool.close()
    del os.environ["SANDBOX_TEST_SECRET"]


@pytest.fixture(autouse=True)
def _others_run_on(interpreters):
    """After every attempt the pool serves the next episode as ever."""
    yield
    assert sandbox_lab.run_one(interpreters, "6 * 7").output == "42\n"


def _attempt(interpreters, code, timeout_s=5.0):
    return sandbox_lab.run_one(interpreters, textwrap.dedent(code), timeout_s)


def _fails(interpreters, code, *errors):
    result = _attempt(interpreters, code)
    assert result.outcome == "error"
    last_line = result.error.splitlines()[-1]
    assert last_line.startswith(errors), last_line


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/passwd", "/etc/hostname", "/sys/kernel"])
def test_files_of_the_system_are_not_there(interpreters, path):
    _fails(interpreters, f"open({path!r}).read()", "FileNotFoundError", "IsADirectoryError")


def test_home_and_files_of_the_user_are_not_there(interpreters, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    _fails(interpreters, f"open({str(secret)!r}).read()", "FileNotFoundError")
    _fails(interpreters, f"open({__file__!r}).read()", "FileNotFoundError")
    home = pathlib.Path.home()
    code = f"""
        import os
        for folder, _, files in os.walk({str(home)!r}):
            if files:
                print(folder, files[0])
                break
    """
    shown = _attempt(interpreters, code).output
    python = str(pathlib.Path(sys.base_prefix))
    assert shown == "" or shown.startswith(python), "only Python itself may be seen"


def test_whole_tree_holds_no_file_with_a_secret(interpreters):
    code = """
        import os
        print(sorted(os.listdir("/")))
        print(os.listdir("/tmp"), os.getcwd(), sorted(os.listdir("/dev")))
    """
    top, rest = _attempt(interpreters, code).output.splitlines()
    assert not {"etc", "sys", "home", "var", "run", "mnt", "opt", "boot"} & set(eval(top))
    files, place, devices = rest.partition(" /tmp ")
    assert (files, place) == ("[]", " /tmp ")
    harmless = {"full", "null", "random", "urandom", "zero", "tty", "console", "ptmx", "pts"}
    links = {"core", "fd", "shm", "stderr", "stdin", "stdout"}
    assert set(eval(devices)) <= harmless | links


@pytest.mark.parametrize("place", ["/usr/lib", "/", sys.base_prefix, "/dev", "/proc/sys/kernel"])
def test_nothing_outside_can_be_written(interpreters, place):
    target = pathlib.Path(place) / "written_by_a_test"
    _fails(
        interpreters, f"open({str(target)!r}, 'w')", "OSError", "PermissionError", "FileNotFoundE"
    )
    assert not target.exists()


def test_all_that_is_shown_is_read_only_whoever_owns_it(interpreters):
    shown = _attempt(interpreters, "print(open('/proc/mounts').read())").output.splitlines()
    mounts = {line.split()[1]: line.split()[3].split(",") for line in shown if line}
    own = {"/proc", "/tmp"}
    assert own < mounts.keys()
    for place, options in mounts.items():
        if place not in own and not place.startswith("/dev/"):
            assert "ro" in options, place
        if place not in own | {"/dev"}:
            assert "nosuid" in options or place.startswith("/dev/"), place


def test_tmp_is_not_that_of_the_system_and_not_that_of_another_episode(interpreters):
    code = "import pathlib\npathlib.Path('/tmp/written_by_a_test').write_text('x')"
    assert _attempt(interpreters, code).outcome == "done"
    assert not pathlib.Path("/tmp/written_by_a_test").exists()
    assert _attempt(interpreters, "import os\nos.listdir('/tmp')").output == "[]\n"


def test_files_have_a_limit_each_and_together(interpreters):
    one = "file = open('big', 'wb')\nfor _ in range(100):\n    file.write(bytes(10**6))"
    _fails(interpreters, one, "OSError: [Errno 27]", "OSError: [Errno 28]")
    many = """
        for number in range(100):
            with open(str(number), 'wb') as file:
                file.write(bytes(10**6))
    """
    _fails(interpreters, many, "OSError: [Errno 28]")
    # Bubblewrap bounds the number of files by the time only.
    files = "for n in range(10**9):\n    open(f'f{n}', 'w').close()"
    assert _attempt(interpreters, files, timeout_s=2.0).outcome in ("error", "timeout")
    _fails(interpreters, "kept = [open('/dev/null') for _ in range(10**4)]", "OSError: [Errno 24]")


def test_no_network(interpreters):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (("127.0.0.1", port), ("1.1.1.1", 53)):
            code = f"import socket\nsocket.create_connection({address!r}, timeout=2)"
            _fails(interpreters, code, "OSError", "ConnectionRefused", "TimeoutError")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
    _fails(interpreters, "import socket\nsocket.getaddrinfo('example.com', 80)", "socket.gaierror")


def test_no_local_sockets_of_the_system(interpreters):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0sandbox_test_{os.getpid()}")
        server.listen()
        code = f"import socket\nsocket.socket(socket.AF_UNIX).connect({server.getsockname()!r})"
        _fails(interpreters, code, "ConnectionRefusedError")


def test_raw_sockets_are_refused(interpreters):
    code = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"
    _fails(interpreters, code, "PermissionError")


def test_fork_bomb(interpreters):
    result = _attempt(interpreters, "import os\nwhile True:\n    os.fork()", timeout_s=2.0)
    assert result.outcome in ("error", "timeout", "died")
    # The zygote, and of the next interpreter no more than three processes.
    sandbox_lab.wait_until(lambda: len(sandbox_lab.children()) <= 1 + 3 * SPARES)
    _fails(
        interpreters,
        "import subprocess\nkept = [subprocess.Popen(['sleep', '60']) for _ in range(50)]",
        "BlockingIOError: [Errno 11]",
    )


def test_child_of_the_code_does_not_answer_for_it(interpreters):
    twice = "import os\npid = os.fork()\nif pid == 0: raise ValueError\nos.waitpid(pid, 0)[1]"
    bomb = "while True: os.fork()"
    results = sandbox_lab.run(interpreters, twice, "1", bomb, "2", "pid == 0", timeout_s=2.0)
    assert [result.output for result in results] == ["0\n", "1\n", "", "2\n", "False\n"]


def test_thread_bomb(interpreters):
    code = """
        import threading, time
        for _ in range(100):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    """
    _fails(interpreters, code, "RuntimeError: can't start new thread")


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(10**11)",
        "kept = []\nwhile True:\n    kept.append(bytearray(10**7))",
        "x = 'a'\nwhile True:\n    x += x",
    ],
)
def test_memory_bomb(interpreters, code):
    bomb, after = sandbox_lab.run(interpreters, code, "kept = x = None\n1 + 1")
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
    _fails(interpreters, code, "OSError: [Errno 38]")


def test_endless_loop_keeps_the_variables(interpreters):
    _, loop, after = sandbox_lab.run(interpreters, "x = 5", "while True: pass", "x", timeout_s=1.0)
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
    loop, after = sandbox_lab.run(interpreters, code, "'code' in dir()", timeout_s=1.0)
    assert (loop.outcome, loop.kept) == ("timeout", False)
    assert after.output == "False\n"


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
    result = _attempt(interpreters, code, timeout_s=3.0)
    assert result.outcome in ("error", "timeout", "done")
    assert len(result.output) < 2 * sandbox_lab.LIMITS.output_chars
    assert len(result.error) <= sandbox_lab.LIMITS.output_chars


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
    _, after = sandbox_lab.run(interpreters, textwrap.dedent(started), seen)
    assert set(eval(after.output)) <= OURS


def test_signals_reach_nobody_outside(interpreters):
    for target in (os.getpid(), os.getppid()):
        _fails(interpreters, f"import os\nos.kill({target}, 9)", "ProcessLookupError")
    everybody = "import os\nfor target in (0, 1, -1, os.getppid()):\n    os.kill(target, 9)"
    result = _attempt(interpreters, everybody)
    assert result.outcome in ("done", "error", "died")


def test_other_processes_cannot_be_seen(interpreters):
    code = "import os\n[name for name in os.listdir('/proc') if name.isdigit()]"
    assert set(eval(_attempt(interpreters, code).output)) <= OURS


def test_links_lead_nowhere(interpreters, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    for target in (secret, "/etc/shadow", f"/proc/1/root{secret}", f"../../../..{secret}"):
        code = f"import os\nos.symlink({str(target)!r}, 'link')\nopen('link').read()"
        _fails(interpreters, code, "FileNotFoundError", "PermissionError")
    hard = "import os\nos.link('/usr/bin/env', 'link')\nopen('link', 'w')"
    _fails(interpreters, hard, "OSError", "PermissionError")


def test_descriptors_lead_nowhere(interpreters):
    code = """
        import os
        places = set()
        for number in os.listdir("/proc/self/fd"):
            try:
                places.add(os.readlink(f"/proc/self/fd/{number}").partition(":")[0])
                os.open("../../../../../etc/passwd", os.O_RDONLY, dir_fd=int(number))
                places.add("a file of the system")
            except OSError:
                pass  # not a directory, or that of the listing itself, which is closed
        sorted(places)
    """
    output = _attempt(interpreters, code).output
    assert set(eval(output)) <= {"/dev/null", "/memfd", "pipe", "socket"}


def test_environment_variables_are_not_there(interpreters):
    code = """
        import glob, os, subprocess
        print(dict(os.environ))
        for place in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
            print(open(place, "rb").read())
        print(subprocess.run(["env"], capture_output=True, text=True).stdout)
    """
    output = _attempt(interpreters, code).output
    assert "'HOME': '/tmp'" in output
    assert SECRET not in output
    assert str(pathlib.Path.home()) not in output.replace(sys.base_prefix, "")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("unshare(0x10000000)", "a user namespace of its own"),
        ("unshare(0x20000)", "a mount namespace"),
        ("mount(b'none', b'/tmp', b'tmpfs', 0, None)", "a mount"),
        ("umount2(b'/tmp', 2)", "an unmount"),
        ("chroot(b'/tmp')", "another root"),
        ("setuid(0)", "root"),
        ("setgid(0)", "the group of root"),
        ("sethostname(b'x', 1)", "the name of the machine"),
        ("mknod(b'/tmp/disk', 0o60666, 0xfe00)", "a device"),
        ("syscall(103, 3, None, 0)", "the log of the kernel"),
    ],
)
def test_rights_are_gone(interpreters, call, what):
    code = f"import ctypes\nctypes.CDLL(None).{call}"
    assert _attempt(interpreters, code).output == "-1\n", f"got {what}"


def test_no_capability_and_no_way_to_get_one(interpreters):
    code = """
        for line in open("/proc/self/status"):
            if line.startswith(("Cap", "NoNewPrivs", "Uid", "Groups")):
                print(*line.split())
    """
    lines = dict(
        line.split(maxsplit=1)
        for line in _attempt(interpreters, code).output.splitlines()
        if " " in line
    )
    for name in ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"):
        assert int(lines[name], 16) == 0
    assert lines["NoNewPrivs:"] == "1"
    assert "0" not in lines["Uid:"].split()


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
    broken, after = sandbox_lab.run(interpreters, code, "1 + 1", timeout_s=2.0)
    assert (broken.outcome, broken.kept) in (("died", False), ("timeout", False))
    assert after.output == "2\n"


def test_deep_recursion_is_an_error(interpreters):
    _fails(interpreters, "def f(): return f()\nf()", "RecursionError")


def test_cpu_time_has_a_limit_over_all_runs(interpreters):
    code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU))\n"
    code += "resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))"
    result = _attempt(interpreters, code)
    assert result.output == "(20, 20)\n"
    assert "not allowed to raise maximum limit" in result.error
