"""Attempts to break out of the sandbox: none succeeds, each ends in time, the next code runs."""

import os
import pathlib
import socket
import sys

import pytest
import sandbox_lab as lab

pytestmark = pytest.mark.usefixtures("others_run_on")


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/passwd", "/etc/hostname", "/sys/kernel"])
def test_files_of_the_system_are_not_there(interpreters, path):
    lab.fails(interpreters, f"open({path!r}).read()", "FileNotFoundError", "IsADirectoryError")


def test_home_and_files_of_the_user_are_not_there(interpreters, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(lab.SECRET)
    lab.fails(interpreters, f"open({str(secret)!r}).read()", "FileNotFoundError")
    lab.fails(interpreters, f"open({__file__!r}).read()", "FileNotFoundError")
    home = pathlib.Path.home()
    code = f"""
        import os
        for folder, _, files in os.walk({str(home)!r}):
            if files:
                print(folder, files[0])
                break
    """
    shown = lab.attempt(interpreters, code).output
    python = str(pathlib.Path(sys.base_prefix))
    assert shown == "" or shown.startswith(python), "only Python itself may be seen"


def test_whole_tree_holds_no_file_with_a_secret(interpreters):
    code = """
        import os
        print(sorted(os.listdir("/")))
        print(os.listdir("/tmp"), os.getcwd(), sorted(os.listdir("/dev")))
    """
    top, rest = lab.attempt(interpreters, code).output.splitlines()
    assert not {"etc", "sys", "home", "var", "run", "mnt", "opt", "boot"} & set(eval(top))
    files, place, devices = rest.partition(" /tmp ")
    assert (files, place) == ("[]", " /tmp ")
    harmless = {"full", "null", "random", "urandom", "zero", "tty", "console", "ptmx", "pts"}
    links = {"core", "fd", "shm", "stderr", "stdin", "stdout"}
    assert set(eval(devices)) <= harmless | links


@pytest.mark.parametrize("place", ["/usr/lib", "/", sys.base_prefix, "/dev", "/proc/sys/kernel"])
def test_nothing_outside_can_be_written(interpreters, place):
    target = pathlib.Path(place) / "written_by_a_test"
    lab.fails(
        interpreters, f"open({str(target)!r}, 'w')", "OSError", "PermissionError", "FileNotFoundE"
    )
    assert not target.exists()


def test_all_that_is_shown_is_read_only_whoever_owns_it(interpreters):
    code = """
        for line in open("/proc/mounts"):
            _, place, _, options, *_ = line.split()
            print(place, *sorted({"ro", "nosuid"} & set(options.split(","))))
    """
    shown = lab.attempt(interpreters, code).output.splitlines()
    mounts = {line.split()[0]: line.split()[1:] for line in shown}
    own = {"/proc", "/tmp"}
    assert own < mounts.keys()
    for place, options in mounts.items():
        if place not in own and not place.startswith("/dev/"):
            assert "ro" in options or place.startswith("/proc/"), place
        if place not in own | {"/dev"}:
            assert "nosuid" in options or place.startswith("/dev/"), place


def test_tmp_is_not_that_of_the_system_and_not_that_of_another_episode(interpreters):
    code = "import pathlib\npathlib.Path('/tmp/written_by_a_test').write_text('x')"
    assert lab.attempt(interpreters, code).outcome == "done"
    assert not pathlib.Path("/tmp/written_by_a_test").exists()
    assert lab.attempt(interpreters, "import os\nos.listdir('/tmp')").output == "[]\n"


def test_no_network(interpreters):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (("127.0.0.1", port), ("1.1.1.1", 53)):
            code = f"import socket\nsocket.create_connection({address!r}, timeout=2)"
            lab.fails(interpreters, code, "OSError", "ConnectionRefused", "TimeoutError")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
    lab.fails(
        interpreters, "import socket\nsocket.getaddrinfo('example.com', 80)", "socket.gaierror"
    )


def test_no_local_sockets_of_the_system(interpreters):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0sandbox_test_{os.getpid()}")
        server.listen()
        code = f"import socket\nsocket.socket(socket.AF_UNIX).connect({server.getsockname()!r})"
        lab.fails(interpreters, code, "ConnectionRefusedError")


def test_raw_sockets_are_refused(interpreters):
    code = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"
    lab.fails(interpreters, code, "PermissionError")


def test_signals_reach_nobody_outside(interpreters):
    for target in (os.getpid(), os.getppid()):
        lab.fails(interpreters, f"import os\nos.kill({target}, 9)", "ProcessLookupError")
    everybody = "import os\nfor target in (0, 1, -1, os.getppid()):\n    os.kill(target, 9)"
    result = lab.attempt(interpreters, everybody)
    assert result.outcome in ("done", "error", "died")


def test_other_processes_cannot_be_seen(interpreters):
    code = "import os\n[name for name in os.listdir('/proc') if name.isdigit()]"
    assert set(eval(lab.attempt(interpreters, code).output)) <= lab.OURS


def test_links_lead_nowhere(interpreters, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(lab.SECRET)
    for target in (secret, "/etc/shadow", f"/proc/1/root{secret}", f"../../../..{secret}"):
        code = f"import os\nos.symlink({str(target)!r}, 'link')\nopen('link').read()"
        lab.fails(interpreters, code, "FileNotFoundError", "PermissionError")
    hard = "import os\nos.link('/usr/bin/env', 'link')\nopen('link', 'w')"
    lab.fails(interpreters, hard, "OSError", "PermissionError")


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
    output = lab.attempt(interpreters, code).output
    assert set(eval(output)) <= {"/dev/null", "/memfd", "pipe", "socket"}


def test_environment_variables_are_not_there(interpreters):
    code = """
        import glob, os, subprocess
        print(dict(os.environ))
        for place in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
            print(open(place, "rb").read())
        print(subprocess.run(["env"], capture_output=True, text=True).stdout)
    """
    output = lab.attempt(interpreters, code).output
    assert "'HOME': '/tmp'" in output
    assert lab.SECRET not in output
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
    assert lab.attempt(interpreters, code).output == "-1\n", f"got {what}"


def test_no_capability_and_no_way_to_get_one(interpreters):
    code = """
        for line in open("/proc/self/status"):
            if line.startswith(("Cap", "NoNewPrivs", "Uid", "Groups")):
                print(*line.split())
    """
    lines = dict(
        line.split(maxsplit=1)
        for line in lab.attempt(interpreters, code).output.splitlines()
        if " " in line
    )
    for name in ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"):
        assert int(lines[name], 16) == 0
    assert lines["NoNewPrivs:"] == "1"
    assert "0" not in lines["Uid:"].split()
