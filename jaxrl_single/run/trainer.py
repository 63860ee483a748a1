"""The trainer as a process of its own; `run.local` starts it. Reads WORKDIR/config.json."""

from absl import flags

from jaxrl_single.run import child_process, command_line

_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run", required=True)


def main(argv: list[str]) -> None:
    del argv
    from jaxrl_single.stages import trainer_process  # imports jax

    child_process.run(
        "trainer", _WORKDIR.value, trainer_process.run, for_people=trainer_process.FOR_PEOPLE
    )


if __name__ == "__main__":
    command_line.run(main)
