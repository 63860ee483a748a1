"""The main job on one machine: trainer and sampler as processes under this one.

python -m jaxrl_single.run.local --config=configs/tiny_sao.py --workdir=runs/tiny_sao
Run it again to continue; `--dry_run` shows what it would do.
"""

import sys

from absl import flags
from ml_collections import config_flags

from jaxrl_single.run import command_line, launch

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "file with get_config(arg); fields: --config.SECTION.FIELD=VALUE"
)
_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run, made when it is not there")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print config, parameter groups and plan, and exit")


def main(argv: list[str]) -> None:
    del argv
    if _DRY_RUN.value:
        sys.exit(launch.dry_run(_CONFIG.value, _WORKDIR.value))
    sys.exit(launch.run(_CONFIG.value, _WORKDIR.value))


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    command_line.run(main)
