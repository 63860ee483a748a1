"""The second battery: what code may try, in tables; the tests say what must come of it."""

# Calls by their numbers on x86_64, with arguments that would succeed where nothing is refused.
CALLS = {
    "eventfd2": (290, 0, 0),
    "timerfd_create": (283, 0, 0),
    "signalfd4": (289, -1, b"\0" * 8, 8, 0),
    "inotify_init1": (294, 0),
    "fanotify_init": (300, 0x200, 0),
    "userfaultfd": (323, 1),
    "perf_event_open": (298, b"\1\0\0\0\x70\0\0\0" + bytes(104), 0, -1, -1, 0),
    "bpf": (321, 0, bytes(128), 128),
    "io_uring_setup": (425, 8, bytes(256)),
    "io_uring_register": (427, -1, 0, 0, 0),
    "io_setup": (206, 8, bytes(8)),
    "ptrace": (101, 0, 0, 0, 0),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "process_vm_writev": (311, 1, 0, 0, 0, 0, 0),
    "process_madvise": (440, -1, 0, 0, 0, 0),
    "pidfd_open": (434, 1, 0),
    "pidfd_getfd": (438, 0, 0, 0),
    "kcmp": (312, 1, 1, 0, 0, 0),
    "memfd_create": (319, b"x", 0),
    "memfd_secret": (447, 0),
    "name_to_handle_at": (303, -100, b"/tmp", bytes(160), bytes(8), 0),
    "open_by_handle_at": (304, 0, bytes(160), 0),
    "personality": (135, 0x0040000),
    "vmsplice": (278, 1, 0, 0, 0),
    "splice": (275, 0, 0, 1, 0, 0, 0),
    "add_key": (248, b"user", b"x", b"x", 1, -3),
    "request_key": (249, b"user", b"x", None, -3),
    "keyctl": (250, 0, -3, 1),
    "unshare a time namespace": (272, 0x80),
    "unshare a user": (272, 0x10000000),
    "setns": (308, 0, 0),
    "clone a user": (56, 0x10000011, 0, 0, 0, 0),
    "clone3": (435, bytes(88), 88),
    "open_tree": (428, -100, b"/tmp", 1),
    "fsopen": (430, b"tmpfs", 0),
    "move_mount": (429, -100, b"/tmp", -100, b"/tmp", 0),
    "mount_setattr": (442, -100, b"/tmp", 0, bytes(32), 32),
    "statmount": (457, bytes(24), bytes(512), 512, 0),
    "pivot_root": (155, b"/tmp", b"/tmp"),
    "seccomp": (317, 1, 0, 0),
    "landlock_create_ruleset": (444, 0, 0, 1),
    "quotactl": (179, 0x800002, None, 0, 0),
    "lookup_dcookie": (212, 0, bytes(64), 64),
    "sendmsg": (46, 1, bytes(56), 0),
    "bind": (49, 0, bytes(16), 16),
    "listen": (50, 0, 4096),
    "mq_open": (240, b"x", 0o102, 0o600, None),
    "timer_create": (222, 0, None, bytes(8)),
    "rt_sigqueueinfo": (129, 1, 10, bytes(128)),
    "mlockall": (151, 1),
    "setxattr": (188, b"/tmp", b"user.x", b"x", 1, 0),
    "sched_setscheduler": (144, 0, 3, bytes(4)),
    "sched_setaffinity": (203, 0, 8, b"\1" + bytes(7)),
    "mbind": (237, 0, 0, 0, 0, 0, 0),
    "mincore": (27, 0, 0, bytes(8)),
    "sync": (162,),
    "syslog": (103, 3, bytes(64), 64),
    "swapon": (167, b"/tmp/x", 0),
    "kexec_load": (246, 0, 0, 0, 0),
    "finit_module": (313, 0, b"", 0),
    "reboot": (169, 0xFEE1DEAD, 672274793, 0, 0),
    "settimeofday": (164, bytes(16), None),
    "acct": (163, None),
    "flock": (73, 0, 1),
    "a call by its second number": (0x40000000 + 39,),
    "a call that is not invented yet": (1000,),
}

# Expressions that are true when the attempt has succeeded; whatever they raise is a failure, too.
GAINS = {
    "a larger pipe": "fcntl.fcntl(os.pipe()[1], 1031, 2**20)",
    "a lease on a file": "fcntl.fcntl(os.open('lease', 0o102), 1024, 1) == 0",
    "news of a folder": "fcntl.fcntl(os.open('/tmp', 0), 1026, 2) == 0",
    "a lock on a file that all see": "fcntl.lockf(open(os.__file__), 5) is None",
    "a lock of an open file": "fcntl.fcntl(open(os.__file__), 37, bytes(32))",
    "a seal on its own output": "fcntl.fcntl(1, 1033, 8) == 0",
    "a larger buffer of a socket": "pair()[0].setsockopt(1, 7, 2**22) is None",
    "a larger buffer by force": "pair()[0].setsockopt(1, 32, 2**22) is None",
    "a program on a socket": "pair()[0].setsockopt(1, 26, bytes(16)) is None",
    "a name for a socket": "socket.socket(1, 2).bind('') is None",
    "a descriptor over a socket": "pair()[0].sendmsg([b'x'], [(1, 1, b'\\0\\0\\0\\0')])",
    "sockets of other families": (
        "[f for f in range(46) if f != 1 for k in (1, 2, 3, 5) if opens(f, k)]"
    ),
    "pairs of other families": "[f for f in range(2, 46) if pairs(f)]",
    "input of a terminal": "fcntl.ioctl(1, 0x5412, b'x')",
    "a process that does not die with it": "libc.prctl(1, 0) == 0",
    "a tracer": "libc.prctl(0x59616D61, -1) == 0",
    "capabilities for programs": "libc.prctl(47, 2, 1, 0, 0) == 0",
    "more descriptors": "resource.setrlimit(7, (4096, 4096)) is None",
    "more memory": "resource.setrlimit(9, (2**40, 2**40)) is None",
    "limits of the first process": "resource.prlimit(os.getppid() or 1, 7, (4096, 4096))",
    "a place behind others when memory ends": "write('/proc/self/oom_score_adj', '-1000')",
    "a program for dumps": "write('/proc/sys/kernel/core_pattern', '|/tmp/x')",
    "keys of the kernel's console": "write('/proc/sysrq-trigger', 'b')",
    "a map of users": "write('/proc/self/uid_map', '0 0 1')",
    "memory of the first process": "os.getpid() != 1 and open('/proc/1/mem', 'rb')",
    "memory of the system": "open('/proc/kcore', 'rb')",
    "keys of others": "open('/proc/keys').read() + open('/proc/key-users').read()",
    "settings of the kernel": "os.listdir('/sys')",
    "groups of processes": "glob.glob('/sys/fs/cgroup/*')",
    "folders of others by way of its root": "glob.glob('/proc/*/root/etc/passwd')",
    "folders of others by way of a folder": "glob.glob('/proc/self/cwd/../../../etc/passwd')",
    "networks of others": "[l for l in open('/proc/net/dev') if ':' in l and ' lo:' not in l]",
    "local sockets of others": "open('/proc/net/unix').read().splitlines()[3:]",
    "environments of others": (
        "[p for p in glob.glob('/proc/*/environ') if b'swordfish' in open(p, 'rb').read()]"
    ),
    "what its parent was called with": (
        "[p for p in glob.glob('/proc/*/cmdline') if b'pytest' in open(p, 'rb').read()]"
    ),
    "devices": "[d for d in ('kmsg', 'mem', 'kvm', 'fuse') if os.path.exists('/dev/' + d)]",
    "a terminal": "os.open('/dev/tty', os.O_RDWR) and os.ttyname(0)",
    "rights by a program": "[p for p in glob.glob('/usr/bin/*') if gains_by(p)]",
    "installed packages": (
        "glob.glob('/usr/lib/python3*/*-packages/*')"
        " + glob.glob(sys.prefix + '/lib/*/*-packages/*')"
    ),
    "packages by name": "[n for n in ('reasoning_gym', 'math_verify', 'jax', 'pip') if found(n)]",
    "its own program": "[n for n in sys.modules if n.startswith('jaxrl')] or found('jaxrl_single')",
    "what was left by another": "os.path.exists('/tmp/left') or open('/tmp/left', 'w').close()",
}
# Calls as a program of 32 bits makes them.
AS_I386 = """
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid of i386); int 0x80; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
number = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
"""

HELPERS = """
import ctypes, fcntl, glob, importlib.util, mmap, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
pair = socket.socketpair
def opens(family, kind):
    try: return socket.socket(family, kind)
    except OSError: return None
def pairs(family):
    try: return socket.socketpair(family)
    except OSError: return None
def write(path, text):
    with open(path, "w") as file: return file.write(text)
def gains_by(path):
    return os.stat(path).st_mode & 0o6000 and not os.statvfs(path).f_flag & os.ST_NOSUID
def found(name): return importlib.util.find_spec(name)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return result, ctypes.get_errno()
def gain(text):
    try: return bool(eval(text))
    except (OSError, ValueError): return False
"""

# What an interpreter may do to itself: it is an observation, and the next call is one, too.
TO_ITSELF = {
    "an error handler": "import codecs\ncodecs.register_error('replace', lambda e: 1 / 0)\n"
    "import os\nos.write(1, b'\\xff')",
    "another encoding": "import sys\nsys.stdout.reconfigure(encoding='utf-16')\nprint('x')",
    "a locale": "import locale\nlocale.setlocale(locale.LC_ALL, 'C.UTF-8')\nprint('é'.encode())",
    "half a character": "import os\n_ = os.write(1, '\\ud83d'.encode('utf-8', 'surrogatepass'))",
    "names that are none": "type('E', (Exception,), {'__module__': '\\udfff'})\nraise _",
    "zeros": "print('\\0' * 3000)\nraise ValueError('\\0')",
    "an import hook": "import sys\nsys.meta_path.insert(0, 5)\nimport colorsys",
    "another import": "import builtins\nbuiltins.__import__ = None\nimport json",
    "another json": "import sys, json\nfor n in ('dumps', 'loads'): setattr(json, n, None)\n"
    "sys.modules['json'] = None",
    "no builtins": "import builtins\nbuiltins.__dict__.clear()",
    "no modules": "import sys\nsys.modules.clear()",
    "another open": "import os, signal\nos.pread = os.fstat = signal.setitimer = None",
    "a file for the next": "open('sitecustomize.py', 'w').write('1 / 0')",
    "a pickle": "import pickle, os\nclass P:\n    def __reduce__(self): return os._exit, (3,)\n"
    "print(pickle.dumps(P()))",
    "a trace of another file": "exec(compile('1 / 0', '/etc/passwd', 'exec'))",
    "errors in a ring": "a, b = ValueError(), KeyError()\na.__cause__, b.__cause__ = b, a\nraise a",
    "errors in a tower": "e = ValueError()\n"
    "for _ in range(3000): e = ExceptionGroup('', [e])\nraise e",
    "notes that are none": "e = ValueError()\ne.__notes__ = 5\nraise e",
    "a syntax error that is none": "raise SyntaxError('x', (5, 'a', object(), {}, [], ()))",
    "an error that never ends": "class E(Exception):\n    def __str__(self):\n"
    "        while True: pass\nraise E",
    "an exit that never ends": "import sys\nclass E:\n    def __str__(self):\n"
    "        while True: pass\nsys.exit(E())",
    "a value that exits": "class V:\n    def __repr__(self): raise SystemExit('\\ud800')\nV()",
    "a stop": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "a signal for later": "import signal, time\nsignal.signal(14, lambda *_: 1 / 0)\n"
    "signal.signal(10, lambda *_: 1 / 0)\nsignal.alarm(1)\nsignal.raise_signal(10)",
    "signals without end": "import os, signal, threading\n"
    "signal.signal(10, lambda *_: 1 / 0)\ndef send():\n    while True: os.kill(os.getpid(), 10)\n"
    "threading.Thread(target=send, daemon=True).start()",
    "a byte for each signal": "import os, signal\nfor n in range(3, 20):\n    try:\n"
    "        os.set_blocking(n, False)\n        signal.set_wakeup_fd(n)\n"
    "    except (OSError, ValueError): pass\n"
    "signal.raise_signal(17)",
    "a bomb in a thread": "import os, threading\nthreading.Timer(0.05, os._exit, (0,)).start()",
    "a bomb in C": "import faulthandler\nfaulthandler.dump_traceback_later(0.05, exit=True)",
    "a bomb at the end": "import atexit, time\natexit.register(time.sleep, 60)\nraise SystemExit",
    "a bomb in a child": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)",
    "a clock of its own": "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)\n"
    "sum(range(10**6))",
    "a trace of all": "import sys\nsys.settrace(lambda *_: 1 / 0)\n"
    "sys.setprofile(lambda *_: 1 / 0)",
    "an audit of all": "import sys\ndef hook(*_): raise KeyboardInterrupt\nsys.addaudithook(hook)",
    "no stack": "import sys\nsys.setrecursionlimit(30)",
    "no descriptors": "import os\nkept = []\nwhile True: kept.append(os.open('/dev/null', 0))",
    "no folder": "import os\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('/tmp/gone')",
    "another program": "import os\nos.execv('/bin/true', ['true'])",
    "another output": "import os\nfor n in range(3, 20):\n    try: os.dup2(1, n)\n"
    "    except OSError: pass",
    "a tower of objects": "x = []\nfor _ in range(10**5): x = [x]\nx",
    "a number that is too long": "print(10**5000)",
}
# Data on the socket to the other end, in place of an answer; the length before it where it is None.
ON_THE_SOCKET = {
    "nothing of what was promised": ("b'{'", 1000),
    "half a length": ("b''", None),
    "the largest length": ("b'x'", 2**32 - 1),
    "a length of nothing": ("b''", 0),
    "no characters": ("b'\\xff\\xfe\\xfd'", 3),
    "a tower": ("b'[' * 90_000", 90_000),
    "a tower of objects": ("b'{\"a\":' * 15_000", 75_000),
    "a number": ("b'1' * 5000", 5000),
    "no number": ("b'NaN'", 3),
    "an answer without text": ('b\'{"run": 1, "output": [], "error": 1, "outcome": {}}\'', None),
    "half a character": (
        'b\'{"run": %d, "output": "\\\\ud800", "error": "", "outcome": "x"}\' % 1',
        None,
    ),
}
