"""A pool for tests, and runs of code in it."""

import asyncio
import os
import pathlib
import textwrap
import time

import pytest

from jaxrl_single.envs.sandbox import isolation, limits, pool

# An answer comes so much later than its deadline at most: grace, restart, and a busy machine.
LATE_S = 10.0
SPARES = 1  # of the pool that is attacked
OURS = {"1", "2"}  # process ids of the interpreter, or of bubblewrap and the interpreter
SECRET = "swordfish-7431"  # in the environment of whoever starts the sandbox
# Small, so that the attacks on them are short.
LIMITS = limits.Limits(memory_mb=400, processes=8, cpu_s=20, file_mb=8, output_chars=2000)


def isolated_pool(name="namespaces", **options):
    """A pool behind walls of a kind; the test is skipped where there are none."""
    try:
        chosen = isolation.choose(name)
    except isolation.NoIsolation as error:
        pytest.skip(str(error))
    return pool.Pool(chosen, LIMITS, **options)


def run(interpreters, *codes, timeout_s=5.0):
    """Results of pieces of code in one interpreter; each must come within its deadline."""

    async def run_all():
        results = []
        async with interpreters.interpreter() as python:
            for code in codes:
                started = time.monotonic()
                results.append(await python.run(code, timeout_s))
                assert time.monotonic() - started < timeout_s + LATE_S
        return results

    return asyncio.run(run_all())


def run_one(interpreters, code, timeout_s=5.0):
    """The result of one piece of code in an interpreter of its own."""
    return run(interpreters, code, timeout_s=timeout_s)[0]


def attempt(interpreters, code, timeout_s=5.0):
    """The result of an indented piece of code in an interpreter of its own."""
    return run_one(interpreters, textwrap.dedent(code), timeout_s)


def fails(interpreters, code, *errors):
    """Code that raises one of these: beginnings of the last line of a traceback."""
    result = attempt(interpreters, code)
    assert result.outcome == "error"
    last_line = result.error.splitlines()[-1]
    assert last_line.startswith(errors), last_line


def children(pid=None):
    """Process ids of all descendants of a process, of this one by default."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            parents[int(entry.name)] = int(fields[1])
    found, new = set(), {os.getpid() if pid is None else pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def wait_until(condition):
    """Returns when `condition()` holds; fails if that does not come."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)
