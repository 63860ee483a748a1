"""The filter of system calls, stepped through as the kernel would, for both architectures."""

import errno
import struct

import pytest

from jaxrl_single.envs.sandbox import syscalls

ALLOWED = 0x7FFF0000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# A few numbers of <asm-generic/unistd.h> and <asm/unistd_64.h>, written down by themselves.
REFUSED = {
    "x86_64": {"ptrace": 101, "keyctl": 250, "flock": 73, "mount": 165, "unshare": 272, "bpf": 321},
    "aarch64": {"ptrace": 117, "keyctl": 219, "flock": 32, "mount": 40, "unshare": 97, "bpf": 280},
}
KNOWN = {
    "x86_64": {"read": 0, "mmap": 9, "execve": 59, "getrandom": 318, "wait4": 61, "futex": 202},
    "aarch64": {
        "read": 63,
        "mmap": 222,
        "execve": 221,
        "getrandom": 278,
        "wait4": 260,
        "futex": 98,
    },
}


def _answer(program, architecture, number, arguments=()):
    """0 if the call is allowed, else its error."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("@HBBI", program))
    at, value = 0, 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x06:
            return 0 if operand == ALLOWED else operand & 0xFFFF
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif code == 0x54:
            value &= operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", AUDIT)
def test_what_is_on_the_list_is_allowed_and_nothing_else(machine):
    program = syscalls.build(machine)
    allowed = syscalls.allowed(machine)
    assert allowed.items() >= KNOWN[machine].items()
    assert len(set(allowed.values())) == len(allowed)
    checked = {allowed[name] for name in syscalls._ARGUMENTS}
    for number in [*range(700), 0x40000000, 0x40000027, -1]:
        if number not in checked:
            expected = 0 if number in allowed.values() else errno.ENOSYS
            assert _answer(program, AUDIT[machine], number & 0x7FFFFFFF) == expected, number
    for number in REFUSED[machine].values():
        assert _answer(program, AUDIT[machine], number) == errno.ENOSYS
    assert _answer(program, 0x40000003, allowed["read"]) == errno.ENOSYS  # i386


@pytest.mark.parametrize("machine", AUDIT)
@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("clone", (0x1200011,), 0),
        ("clone", (0x10000011,), errno.EPERM),
        ("clone", (0x40000000,), errno.EPERM),
        ("socket", (1, 1), 0),
        ("socket", (1, 0x80002), 0),  # closed on exec
        ("socket", (2, 1), errno.ENETUNREACH),
        ("socket", (10, 2), errno.ENETUNREACH),
        ("socket", (2, 3), errno.EPERM),
        ("socket", (40, 1), errno.EAFNOSUPPORT),
        ("socketpair", (1, 1), 0),
        ("socketpair", (2, 1), errno.EAFNOSUPPORT),
        ("setsockopt", (3, 1, 20), 0),
        ("setsockopt", (3, 1, 7), errno.EPERM),
        ("setsockopt", (3, 6, 20), errno.EPERM),
        ("fcntl", (3, 4), 0),
        ("fcntl", (3, 1030), 0),
        ("fcntl", (3, 6), errno.EPERM),
        ("fcntl", (3, 1031), errno.EPERM),
        ("fcntl", (3, 2**32 + 1031), errno.EPERM),
        ("ioctl", (3, 0x5401), 0),
        ("ioctl", (3, 0x5412), errno.ENOTTY),
        ("prctl", (4, 0), 0),
        ("prctl", (1, 0), errno.ENOSYS),
    ],
)
def test_arguments_decide_about_some(machine, name, arguments, error):
    number = syscalls.allowed(machine)[name]
    assert _answer(syscalls.build(machine), AUDIT[machine], number, arguments) == error
