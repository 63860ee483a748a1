"""System calls that code in a sandbox may make; all others are refused. Standard library only.

A list of what is allowed, so that what a future kernel brings is refused, too. It holds what
Python, its libraries and small programs need. It does not hold

  memory that no limit of a process counts: files in memory, System V, queues of sockets, buffers of
      sockets and pipes beyond the default, watches, timers, asynchronous I/O, io_uring
  what processes share whatever their namespaces: keyrings, locks on files that all can read
  ways into other processes and into the kernel: ptrace, process_vm_*, bpf, perf, userfaultfd, pidfd
  a change of namespaces, mounts, users and of what ends a process with its parent

Refused, a call looks like one that this system does not have, for which libraries have other ways.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import struct

from jaxrl_single.envs.sandbox import libc

# name:number on x86_64:number on aarch64, of <asm/unistd.h>; the older ones are not on aarch64.
_CALLS = """
# Files that are open.
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69
pwritev:296:70 preadv2:327:286 pwritev2:328:287 lseek:8:62 close:3:57 close_range:436:436
dup:32:23 dup2:33 dup3:292:24 pipe:22 pipe2:293:59 fcntl:72:25 ioctl:16:29 ftruncate:77:46
fallocate:285:47 fsync:74:82 fdatasync:75:83 fadvise64:221:223 sendfile:40:71
copy_file_range:326:285
# Files by name.
open:2 creat:85 openat:257:56 openat2:437:437 stat:4 lstat:6 fstat:5:80 newfstatat:262:79
statx:332:291 access:21 faccessat:269:48 faccessat2:439:439 readlink:89 readlinkat:267:78
getdents:78 getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 mkdir:83 mkdirat:258:34
rmdir:84 rename:82 renameat:264:38 renameat2:316:276 link:86 linkat:265:37 unlink:87
unlinkat:263:35 symlink:88 symlinkat:266:36 chmod:90 fchmod:91:52 fchmodat:268:53
fchmodat2:452:452 chown:92 lchown:94 fchown:93:55 fchownat:260:54 umask:95:166 truncate:76:45
utime:132 utimes:235 futimesat:261 utimensat:280:88 mknod:133 mknodat:259:33 statfs:137:43
fstatfs:138:44 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11
llistxattr:195:12 flistxattr:196:13
# Waiting for files.
poll:7 ppoll:271:73 select:23 pselect6:270:72 epoll_create:213 epoll_create1:291:20
epoll_ctl:233:21 epoll_wait:232 epoll_pwait:281:22 epoll_pwait2:441:441
# Memory.
brk:12:214 mmap:9:222 munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233
msync:26:227
# Processes and threads.
clone:56:220 fork:57 vfork:58 execve:59:221 exit:60:93 exit_group:231:94 wait4:61:260
waitid:247:95 getpid:39:172 getppid:110:173 gettid:186:178 getpgid:121:155 setpgid:109:154
getpgrp:111 getsid:124:156 setsid:112:157 kill:62:129 tkill:200:130 tgkill:234:131
set_tid_address:218:96 set_robust_list:273:99 rseq:334:293 arch_prctl:158 futex:202:98
sched_yield:24:124 sched_getaffinity:204:123 getcpu:309:168 getpriority:140:141
setpriority:141:140 prctl:157:167
# Who and where one is.
getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148
getresgid:120:150 getgroups:115:158 uname:63:160 sysinfo:99:179 getrlimit:97:163
setrlimit:160:164 prlimit64:302:261 getrusage:98:165 times:100:153 getrandom:318:278
# Signals and time.
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136
rt_sigsuspend:130:133 rt_sigtimedwait:128:137 sigaltstack:131:132 restart_syscall:219:128
pause:34 alarm:37 setitimer:38:103 getitimer:36:102 nanosleep:35:101 clock_nanosleep:230:115
gettimeofday:96:169 time:201 clock_gettime:228:113 clock_getres:229:114
# Sockets, which can only be had in pairs: what waits in the queue of one that has a name or
# listens is bounded by nothing of this process.
socket:41:198 socketpair:53:199 connect:42:203 sendto:44:206 recvfrom:45:207 recvmsg:47:212
shutdown:48:210 getsockname:51:204 getpeername:52:205 getsockopt:55:209 setsockopt:54:208
"""
_MACHINES = ("x86_64", "aarch64")
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_NEW_NAMESPACES = 0x7E020000  # the flags of clone, together
_ALL_BITS = 0xFFFFFFFF
# Of a call: argument, its bits that count, the values allowed, the error for others; in this order.
# The kernel reads each of these arguments as 32 bits.
_ARGUMENTS = {
    "clone": ((0, _NEW_NAMESPACES, (0,), errno.EPERM),),
    # Descriptors, flags, and the size of a pipe; no locks, leases, notices, seals, larger pipes.
    "fcntl": ((1, _ALL_BITS, (0, 1, 2, 3, 4, 1030, 1032), errno.EPERM),),
    # Is it a terminal and how wide, bytes to read, blocking, closed on exec.
    "ioctl": ((1, _ALL_BITS, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451), errno.ENOTTY),),
    # PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA.
    "prctl": ((0, _ALL_BITS, (2, 3, 4, 15, 16, 0x53564D41), errno.ENOSYS),),
    # Not raw; of the families AF_UNIX, and for AF_INET and AF_INET6 the error of no network.
    "socket": (
        (1, 0xF, (1, 2, 5), errno.EPERM),
        (0, _ALL_BITS, (1, 2, 10), errno.EAFNOSUPPORT),
        (0, _ALL_BITS, (1,), errno.ENETUNREACH),
    ),
    "socketpair": ((0, _ALL_BITS, (1,), errno.EAFNOSUPPORT),),
    # Of SOL_SOCKET: reuse, broadcast, keepalive, linger, time limits; no buffers, no filters.
    "setsockopt": (
        (1, _ALL_BITS, (1,), errno.EPERM),
        (2, _ALL_BITS, (2, 6, 9, 13, 15, 20, 21), errno.EPERM),
    ),
}
# <linux/bpf_common.h>; a jump says how many steps to skip if true, and if false.
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_STEP = struct.Struct("@HBBI")  # sock_filter: code, steps to skip if true, if false, operand
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8  # of struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def refuse() -> None:
    """Refuses them to this process and its children, for good. It must have no new privileges.

    Raises:
      OSError: the system does not allow it, or the architecture is unknown here.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(f"calls can't be refused on {machine}; known are {_MACHINES}")
    program = build(machine)
    code = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // _STEP.size, ctypes.addressof(code))
    pointer = ctypes.create_string_buffer(fprog)
    libc.call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, pointer, 0, 0, known_as="seccomp")


def leave_keyring() -> None:
    """Joins an empty session keyring, so that the one of whoever started this is out of reach.

    Where the system has no keyrings, or refuses them, there is nothing to leave.
    """
    number = _KEYCTL.get(platform.machine())
    if number is not None:
        libc.syscall(number, _JOIN_SESSION_KEYRING, None)


def allowed(machine: str) -> dict[str, int]:
    """Name -> number of the calls that are allowed, some with a check of arguments."""
    column = 1 + _MACHINES.index(machine)
    lines = (line for line in _CALLS.splitlines() if not line.startswith("#"))
    calls = (call.split(":") for line in lines for call in line.split())
    return {call[0]: int(call[column]) for call in calls if len(call) > column}


@functools.cache
def build(machine: str) -> bytes:
    """The filter, in the language of BPF, for an architecture of `_MACHINES`."""
    numbers = allowed(machine)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for name, checks in _ARGUMENTS.items():
        block = [step for check in checks for step in _check(*check)]
        block.append((_RETURN, 0, 0, _ALLOW))
        steps += [(_IF_EQUAL, 0, len(block), numbers.pop(name)), *block]
    for first, last in _ranges(sorted(numbers.values())):
        steps += [
            (_IF_AT_LEAST, 3, 0, last + 1),
            (_IF_AT_LEAST, 0, 1, first),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        ]
    # x86_64 knows every call by a second number, too, which ends up here.
    steps.append((_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    return b"".join(_STEP.pack(*step) for step in steps)


def _check(
    argument: int, bits: int, values: tuple[int, ...], error: int
) -> list[tuple[int, int, int, int]]:
    """Steps that go on behind themselves if an argument has one of the values."""
    place = _FIRST_ARGUMENT + _ARGUMENT_BYTES * argument
    far = range(len(values), 0, -1)
    return [
        (_LOAD, 0, 0, place),
        (_AND, 0, 0, bits),
        *((_IF_EQUAL, skip, 0, value) for skip, value in zip(far, values, strict=True)),
        (_RETURN, 0, 0, _ERRNO | error),
    ]


def _ranges(numbers: list[int]) -> list[list[int]]:
    """First and last of each run of neighbours."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
