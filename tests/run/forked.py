"""Runs many commands from one process that has the slow imports done.

Standard input is JSON, [[module, argument, ...], ...]; out comes [[exit code, errors], ...]. Each
command runs in a fork of its own, as `python -m MODULE` does. What is loaded here has no threads
and no jax, so that a fork is whole.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback

import jaxrl_single.run.launch  # noqa: F401


def run(module, *arguments):
    with tempfile.TemporaryFile("w+") as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors.fileno(), 2)
            os._exit(_module(module, arguments))
        _, status = os.waitpid(pid, 0)
        errors.seek(0)
        return os.waitstatus_to_exitcode(status), errors.read()


def _module(module, arguments):
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    json.dump([run(*command) for command in json.load(sys.stdin)], sys.stdout)
