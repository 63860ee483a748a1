"""Why a process ended, out of what it printed; the texts come from real interpreters."""

import subprocess
import sys

import pytest

from jaxrl_single.supervise import logs


def output(code):
    """What a Python program prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout


def test_the_last_traceback_is_the_one_that_counts():
    text = output(
        "import traceback\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: traceback.print_exc()\n"
        "print('went on', flush=True)\n"
        "raise ValueError('the end')\n"
    )
    found = logs.last_traceback(text)
    assert found.startswith("Traceback (most recent call last):")
    assert found.endswith("ValueError: the end")
    assert "ZeroDivisionError" not in found


@pytest.mark.parametrize("link", ["", " from cause"])
def test_causes_belong_to_it(link):
    text = output(
        "print('before', flush=True)\n"
        "try: {}['first']\n"
        "except KeyError as cause:\n"
        f"    raise ValueError('second'){link}\n"
    )
    found = logs.last_traceback(text)
    assert "KeyError: 'first'" in found
    assert found.endswith("ValueError: second")
    assert "before" not in found


def test_a_group_of_exceptions_is_shown_whole():
    text = output(
        "import asyncio\n"
        "async def fail(n): raise ValueError(f'part {n}')\n"
        "async def main():\n"
        "    async with asyncio.TaskGroup() as group:\n"
        "        for n in range(2): group.create_task(fail(n))\n"
        "asyncio.run(main())\n"
    )
    found = logs.last_traceback(text)
    assert "Exception Group Traceback" in found.splitlines()[0]
    assert "part 0" in found
    assert "part 1" in found


def test_a_crash_of_the_interpreter_is_shown_with_its_stack():
    text = output(
        "import faulthandler, ctypes\n"
        "faulthandler.enable()\n"
        "def read_nowhere(): ctypes.string_at(0)\n"
        "read_nowhere()\n"
    )
    found = logs.last_traceback(text)
    assert found.startswith("Fatal Python error: Segmentation fault")
    assert "read_nowhere" in found


def test_stacks_of_all_threads_are_one_report():
    text = output(
        "import faulthandler, threading, time\n"
        "def waits(): time.sleep(1)\n"
        "threading.Thread(target=waits, daemon=True).start()\n"
        "time.sleep(0.1)\n"
        "faulthandler.dump_traceback()\n"
    )
    found = logs.last_traceback(text)
    assert "waits" in found
    assert "<module>" in found


def test_last_words_for_people_count_more_than_tracebacks_of_libraries():
    text = output(
        "import atexit, sys, threading\n"
        "def fail(): raise OSError('No space left on device')\n"
        "thread = threading.Thread(target=fail)\n"
        "thread.start()\n"
        "thread.join()\n"
        "atexit.register(fail)\n"
        "print('error: cannot save: No space left\\nsecond line', file=sys.stderr)\n"
        "sys.exit(1)\n"
    )
    assert text.count("Traceback") == 2
    assert logs.last_message(text) == "error: cannot save: No space left\nsecond line"


def test_a_crash_after_a_message_is_no_message():
    text = output("print('error: a tool failed', flush=True)\n1 / 0")
    assert logs.last_message(text) is None
    assert logs.last_traceback(text).endswith("ZeroDivisionError: division by zero")
    assert logs.last_message("all is well\n") is None


def test_no_traceback_gives_the_last_lines():
    text = "".join(f"line {n}\n" for n in range(50)) + "\n\n"
    assert logs.last_traceback(text) is None
    assert logs.last_lines(text).splitlines() == [f"line {n}" for n in range(30, 50)]
    assert logs.last_lines("") == "(the log is empty)"


def test_read_begins_where_the_process_began(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"old\nnew \xff\n")
    assert logs.read(path, 4) == "new \ufffd\n"
    assert logs.read(tmp_path / "none", 0) == ""
