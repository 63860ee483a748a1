"""System calls that code in a sandbox is refused. Standard library only.

The limit on a process's memory counts what it has mapped. What these calls make exists without:
files in memory, and the shared memory, semaphores and messages of System V. And a process that is
to end with its parent may not change its mind. Refused, a call looks like one that this system does
not have, for which libraries have other ways.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from jaxrl_single.envs.sandbox import libc

# Of each architecture: its number in <linux/audit.h>, and those of memfd_create, memfd_secret,
# shmget, semget and msgget; and that of prctl.
_ARCHITECTURES = {
    "x86_64": (0xC000003E, (319, 447, 29, 64, 68), 157),
    "aarch64": (0xC00000B7, (279, 447, 194, 190, 186), 167),
}
_X32 = 0x40000000  # x86_64 knows every call by a second number from here on
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # of <linux/bpf_common.h>
_STEP = struct.Struct("@HBBI")  # sock_filter: code, steps to skip if true, if false, operand
# Offsets in struct seccomp_data; the kernel reads an int of prctl's first argument.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000 | errno.ENOSYS
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _MODE_FILTER = 1, 22, 2


def refuse() -> None:
    """Refuses them to this process and its children, for good. It must have no new privileges.

    Raises:
      OSError: the system does not allow it, or the architecture is unknown here.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(f"memory has no limit on {machine}; known are {sorted(_ARCHITECTURES)}")
    program = _program(*_ARCHITECTURES[machine])
    code = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // _STEP.size, ctypes.addressof(code))
    pointer = ctypes.create_string_buffer(fprog)
    libc.call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, pointer, 0, 0, known_as="seccomp")


def _program(architecture: int, refused: tuple[int, ...], prctl: int) -> bytes:
    """A filter in the language of BPF. Its last step refuses; all jumps but one go there."""
    last = len(refused) + 8

    def jump(at: int, code: int, value: int, *, if_true: bool = True) -> bytes:
        far = last - at - 1
        return _STEP.pack(code, far if if_true else 0, 0 if if_true else far, value)

    steps = [
        _STEP.pack(_LOAD, 0, 0, _ARCHITECTURE),
        jump(1, _IF_EQUAL, architecture, if_true=False),
        _STEP.pack(_LOAD, 0, 0, _NUMBER),
        jump(3, _IF_AT_LEAST, _X32),
        *(jump(at, _IF_EQUAL, number) for at, number in enumerate(refused, start=4)),
        _STEP.pack(_IF_EQUAL, 0, 2, prctl),  # of other calls the argument does not matter
        _STEP.pack(_LOAD, 0, 0, _FIRST_ARGUMENT),
        jump(last - 2, _IF_EQUAL, _PR_SET_PDEATHSIG),
        _STEP.pack(_RETURN, 0, 0, _ALLOW),
        _STEP.pack(_RETURN, 0, 0, _ERRNO),
    ]
    return b"".join(steps)
