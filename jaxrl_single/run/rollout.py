"""The rollout as a process of its own; `run.local` starts it. Reads WORKDIR/config.json."""

from absl import flags

from jaxrl_single.run import child_process, command_line
from jaxrl_single.stages import rollout_process

_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run", required=True)


def main(argv: list[str]) -> None:
    del argv
    child_process.run("rollout", _WORKDIR.value, rollout_process.run)


if __name__ == "__main__":
    command_line.run(main)
