"""The main job on one machine: trainer and sampler as processes under this one.

python -m jaxrl_single.run.local --config=configs/tiny_sao.py --workdir=runs/tiny_sao
Run it again to continue; `--workdir` alone takes the config that is recorded there. `--dry_run`
shows what it would do.
"""

import sys

from absl import flags
from ml_collections import config_flags

from jaxrl_single.run import command_line, launch, recorded_config
from jaxrl_single.supervise import provenance

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "file with get_config(arg); fields: --config.SECTION.FIELD=VALUE"
)
_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run, made when it is not there")
_ACCEPT_CHANGED = flags.DEFINE_list(
    "accept_changed",
    [],
    f"continue although these have changed since the run began: {', '.join(provenance.PARTS)}",
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print config, parameter groups and plan, and exit")


def main(argv: list[str]) -> None:
    del argv
    if _DRY_RUN.value:
        code = launch.dry_run(_CONFIG.value, _WORKDIR.value, accept_changed=_ACCEPT_CHANGED.value)
    else:
        code = launch.run(_CONFIG.value, _WORKDIR.value, accept_changed=_ACCEPT_CHANGED.value)
    sys.exit(code)


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    flags.register_validator(
        "accept_changed",
        lambda names: set(names) <= set(provenance.PARTS),
        message=f"allowed are {', '.join(provenance.PARTS)}",
    )
    try:
        sys.argv = recorded_config.add(sys.argv)
    except recorded_config.NoConfig as error:
        sys.exit(command_line.refuse(str(error)))
    command_line.run(main)
