"""Walls around a process, made of Linux namespaces. Standard library only; needs no other program.

What is behind them: the directories of a view, read-only; an empty /tmp of limited size; a /proc
and a /dev with next to nothing in them; no network; no other process; no capability. A process of
an ordinary user needs a user namespace for that. One of root does without, and becomes a user that
owns nothing. The code inside gets no user namespace of its own: the system refuses them to a
process that has changed its root directory, which this one does last.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import signal

from jaxrl_single.envs.sandbox import libc

_NEW_MOUNTS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEW_USER, _NEW_PIDS, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_CAPABILITY_VERSION = 0x20080522
_NOBODY = 65534
_MAX_FILES = 4096  # in /tmp: each takes memory of the kernel, even an empty one
_FIRST_UID = 0x70000000  # of users that nobody else has
DEVICES = ("null", "zero", "full", "random", "urandom")
MASKED = ("/proc/keys", "/proc/key-users")  # of a user's processes behind other walls, too
_BASE = "/tmp"  # some directory; what is mounted on it is seen in the new namespace only


@dataclasses.dataclass(frozen=True)
class View:
    """What is visible besides the walls' own.

    Attributes:
      paths: directories and files at their own places, read-only.
      links: symbolic links: place -> target.
      moved: directories and files at places that differ from their own: place -> source.
      hidden: directories, within those above, in whose place there is an empty one.
    """

    paths: tuple[str, ...]
    links: dict[str, str]
    moved: dict[str, str] = dataclasses.field(default_factory=dict)
    hidden: tuple[str, ...] = ()

    def inside(self, path: str) -> str:
        """Where something is seen that is at `path` outside."""
        for place, source in self.moved.items():
            if path == source or path.startswith(f"{source}/"):
                return place + path.removeprefix(source)
        return path


def leave() -> None:
    """Leaves the namespaces of the system; the process ids only for children made from now on.

    Raises:
      OSError: the system does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    kinds = _NEW_MOUNTS | _NEW_CGROUP | _NEW_UTS | _NEW_IPC | _NEW_PIDS | _NEW_NET
    libc.call("unshare", kinds if uid == 0 else kinds | _NEW_USER)
    if uid != 0:
        pathlib.Path("/proc/self/setgroups").write_text("deny")
        pathlib.Path("/proc/self/uid_map").write_text(f"{_NOBODY} {uid} 1")
        pathlib.Path("/proc/self/gid_map").write_text(f"{_NOBODY} {gid} 1")


def build(view: View, *, tmp_mb: int) -> None:
    """Changes what the process sees of the file system to the view. Call it after `leave`.

    Raises:
      OSError: the system does not allow it.
    """
    # By descriptor, because the first mount below may hide the sources.
    places = {path: path for path in view.paths} | view.moved
    sources = {place: os.open(places[place], os.O_PATH) for place in sorted(places)}
    sources |= {f"/dev/{name}": os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    libc.call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    _mount("tmpfs", _BASE, _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    root = f"{_BASE}/root"
    for name in ("proc", "tmp"):
        os.makedirs(f"{root}/{name}")
    # Some containers forbid a new /proc; Python does without.
    with contextlib.suppress(OSError):
        _mount("proc", f"{root}/proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
    options = f"mode=1777,size={tmp_mb}m,nr_inodes={_MAX_FILES}"
    _mount("tmpfs", f"{root}/tmp", _MS_NOSUID | _MS_NODEV, options)
    for path, source in sources.items():
        _bind(source, root + path, read_only=not path.startswith("/dev/"))
    for path in filter(os.path.exists, (root + path for path in MASKED)):
        _bind(sources["/dev/null"], path, read_only=True)
    for source in sources.values():
        os.close(source)
    for path in view.hidden:
        _mount("tmpfs", root + path, _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "mode=755,size=4k")
    for place, target in view.links.items():
        pathlib.Path(root + place).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, root + place)
    _set_attributes(_BASE, _ATTR_RDONLY, recursive=False)
    os.chdir(_BASE)
    # The old root ends up on top of the new one, at the same place.
    libc.call("pivot_root", b".", b".")
    libc.call("umount2", b".", _MNT_DETACH)
    os.chroot("root")
    os.chdir("/tmp")


def finish(number: int) -> None:
    """Within bubblewrap's walls, does what it does not do, and gives up all rights.

    Args:
      number: see `give_up_rights`.

    Raises:
      OSError: the system does not allow it.
    """
    flags = _MS_REMOUNT | _MS_NOSUID | _MS_NODEV
    _mount("tmpfs", "/tmp", flags, f"nr_inodes={_MAX_FILES}")
    give_up_rights(number)


def give_up_rights(number: int) -> None:
    """Drops every capability, for good; as root also becomes a user that owns nothing.

    The process dies with its parent from now on.

    Args:
      number: of the user to become, among those of this module; different for all that live.

    Raises:
      OSError: the system does not allow it.
    """
    with contextlib.suppress(OSError):  # by which the system says that there are no more
        for capability in range(64):
            libc.call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    if os.geteuid() == 0:
        _become(_FIRST_UID + number)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    libc.call("capset", header, (ctypes.c_uint32 * 6)())
    libc.call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # A change of user makes /proc/self belong to root.
    libc.call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
    die_with_parent()


def die_with_parent() -> None:
    """The process gets SIGKILL when its parent ends. A change of user or of rights undoes it."""
    libc.call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _become(uid: int) -> None:
    os.setgroups([])
    try:
        os.setresgid(uid, uid, uid)
    except OSError:  # a container that knows few users
        uid = _NOBODY
        os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _bind(source: int, target: str, *, read_only: bool) -> None:
    place = pathlib.Path(target)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(f"/proc/self/fd/{source}"):
            place.mkdir()
        else:
            place.touch()
    path = f"/proc/self/fd/{source}".encode()
    libc.call("mount", path, target.encode(), None, _MS_BIND | _MS_REC, None)
    if read_only:
        flags = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
        _set_attributes(target, flags, recursive=True)


def _mount(kind: str, target: str, flags: int, options: str | None) -> None:
    data = None if options is None else options.encode()
    libc.call("mount", kind.encode(), target.encode(), kind.encode(), flags, data)


def _set_attributes(path: str, flags: int, *, recursive: bool) -> None:
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)  # to set, to clear, propagation, user
    libc.call(
        "syscall",
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        path.encode(),
        _AT_RECURSIVE if recursive else 0,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
        known_as="mount_setattr",
    )
