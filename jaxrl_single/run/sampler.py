"""A sampler as a process of its own, over HTTP, that follows the weights of a run.

    python -m jaxrl_single.run.sampler --workdir=DIR [--config=configs/tiny_sao.py]

Any number of them may follow one run; its rollout finds them in DIR/samplers. It waits until a
trainer has begun in DIR. Without --config it takes the config of the run; with it, sizes may
differ.
`run.local` starts the run's own with --name.
"""

import functools
import sys

from absl import flags
from ml_collections import config_flags

from jaxrl_single.run import child_process, command_line, lone_sampler

_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run", required=True)
_CONFIG = config_flags.DEFINE_config_file("config", None, "file with get_config(arg)")
_NAME = flags.DEFINE_string("name", "", "of the process, when a supervisor starts it")


def main(argv: list[str]) -> None:
    del argv
    if not _NAME.value:
        sys.exit(lone_sampler.run(_CONFIG.value, _WORKDIR.value))
    from jaxrl_single.stages import sampler_process  # imports jax

    body = functools.partial(sampler_process.run, name=_NAME.value)
    child_process.run(_NAME.value, _WORKDIR.value, body, for_people=sampler_process.FOR_PEOPLE)


if __name__ == "__main__":
    command_line.run(main)
