"""Commands that find the disk full: no file of theirs grows beyond a few bytes."""

import sys

_CODE = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
sys.argv.pop(0)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def python(module: str) -> list[str]:
    """The words that run a module so, in a process of its own; its arguments follow."""
    return [sys.executable, "-c", _CODE, module]
