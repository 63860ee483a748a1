"""Interpreters of the sandbox, many at once: how long a start and a second call take; and what
memory of the system, outside the limits of a process, code can hold.

    python benchmarks/sandbox.py [--sandbox=auto] [--interpreters=64] [--rounds=5] [--held_memory]
"""

import argparse
import asyncio
import pathlib
import statistics
import time

from jaxrl_single.envs.sandbox import isolation, limits, pool

# Each fills what it can get and prints how many there are; measured while they are held.
_HOLD = {
    "pairs of sockets": """
import socket
held = []
try:
    while True:
        held += socket.socketpair()
        for one in held[-2:]:
            one.setblocking(False)
            try: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**23)
            except OSError: pass
            try:
                while True: one.send(bytes(65536))
            except BlockingIOError: pass
except OSError: print(len(held))
""",
    "pipes": """
import fcntl, os
held = []
try:
    while True:
        held += os.pipe()
        os.set_blocking(held[-1], False)
        try: fcntl.fcntl(held[-1], fcntl.F_SETPIPE_SZ, 2**20)
        except OSError: pass
        try:
            while True: os.write(held[-1], bytes(65536))
        except BlockingIOError: pass
except OSError: print(len(held))
""",
    "files that are empty": """
import os
try:
    for number in range(10**6): os.close(os.open(f"/tmp/{number}", os.O_CREAT))
except OSError: print(number)
""",
}
_IN_ALL = """
import os, time
for _ in range(6):
    if os.fork() == 0: break
{hold}
time.sleep(3)
"""


async def _times(interpreters: pool.Pool, count: int) -> tuple[list[float], list[float]]:
    """Seconds until the first answer of each of many interpreters, and of each second call."""

    async def one() -> tuple[float, float]:
        async with interpreters.interpreter() as python:
            begin = time.perf_counter()
            await python.run("x = 1", 60.0)
            started = time.perf_counter() - begin
            await barrier.wait()
            begin = time.perf_counter()
            await python.run("x + 1", 60.0)
            return started, time.perf_counter() - begin

    barrier = asyncio.Barrier(count)
    pairs = await asyncio.gather(*(one() for _ in range(count)))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _unused_mb() -> float:
    """MiB that hold nothing but caches; files in memory count as held."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split()[:2] for line in lines)
    names = ("MemFree:", "Cached:", "Buffers:", "SReclaimable:")
    return (sum(int(fields[name]) for name in names) - int(fields["Shmem:"])) / 1024


async def _held_mb(interpreters: pool.Pool, code: str) -> tuple[float, str]:
    """MiB that a run takes at most from the system, and what it prints."""
    async with interpreters.interpreter() as python:
        await python.run("1")
        before = _unused_mb()
        run = asyncio.create_task(python.run(code, 30.0))
        most = 0.0
        while not run.done():
            await asyncio.sleep(0.02)
            most = max(most, before - _unused_mb())
        return most, " ".join(run.result().output.split())


def _show(name: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=20)
    print(f"{name:12} p50 {cuts[9] * 1e3:7.1f} ms   p95 {cuts[18] * 1e3:7.1f} ms")


async def _measure(options: argparse.Namespace, chosen: isolation.Isolation) -> None:
    size = options.interpreters
    interpreters = pool.Pool(chosen, limits.Limits(), size=size)
    print(f"{chosen.name}, {size} interpreters at once, {options.rounds} rounds")
    starts, calls = [], []
    for _ in range(options.rounds):
        first, second = await _times(interpreters, size)
        starts += first
        calls += second
    _show("start", starts)
    _show("second call", calls)
    if options.held_memory:
        for name, hold in _HOLD.items():
            for what, code in (("one process", hold), ("all", _IN_ALL.format(hold=hold))):
                most, printed = await _held_mb(interpreters, code)
                print(f"{name:22} {what:12} {most:6.0f} MiB   held: {printed}")
    interpreters.close()


def main() -> None:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandbox", default="auto", choices=isolation.NAMES)
    parser.add_argument("--interpreters", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--held_memory", action="store_true")
    options = parser.parse_args()
    asyncio.run(_measure(options, isolation.choose(options.sandbox)))


if __name__ == "__main__":
    main()
