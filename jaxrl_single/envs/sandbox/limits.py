"""What code in a sandbox may use up. Standard library only: programs in the sandbox read this."""

from __future__ import annotations

import dataclasses
import resource

# Of each process. The system keeps up to 0.4 MiB for each half of a pair of sockets, which no limit
# of a process counts.
_DESCRIPTORS = 64


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of one interpreter.

    Attributes:
      memory_mb: address space of each process, MiB.
      processes: processes and threads at one time, the interpreter included.
      cpu_s: CPU time of each process, in all its runs together.
      file_mb: size of a file, and under isolation of all files together, MiB.
      output_chars: of a run's output; the middle of a longer one is left out.
    """

    memory_mb: int = 512
    processes: int = 8
    cpu_s: int = 120
    file_mb: int = 32
    output_chars: int = 4000

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} of a sandbox is {value}, must be >= 1")


def apply(limits: Limits, *, count_processes: bool) -> None:
    """Sets the limits of this process and its children, for good.

    Args:
      count_processes: False leaves the number of processes alone: the system counts all of a
        user, so outside a user of one's own it would count strangers.
    """
    values = {
        resource.RLIMIT_AS: limits.memory_mb * 2**20,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_FSIZE: limits.file_mb * 2**20,
        resource.RLIMIT_NOFILE: _DESCRIPTORS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if count_processes:
        values[resource.RLIMIT_NPROC] = limits.processes
        values[resource.RLIMIT_SIGPENDING] = _DESCRIPTORS
    for name, value in values.items():
        _, most = resource.getrlimit(name)
        if most != resource.RLIM_INFINITY:
            value = min(value, most)
        resource.setrlimit(name, (value, value))
