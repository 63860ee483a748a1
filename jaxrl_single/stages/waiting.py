"""How the trainer's waiting for episodes ends without them."""

from __future__ import annotations


class RolloutFailed(RuntimeError):
    """Episodes fail one after the other, or none arrives; the message carries the first cause."""


class Stopped(Exception):
    """The run was asked to stop while it waited for episodes."""


class StoppedInStep(Stopped):
    """The same in the midst of a step, of which nothing whole is there to be saved."""


def no_progress(silent_s: float, in_flight: int) -> RolloutFailed:
    """The error of episodes that don't end.

    Args:
      silent_s: seconds since the last one came.
      in_flight: tickets that are waited for.
    """
    return RolloutFailed(
        f"no trajectory arrived for {silent_s:.0f} s (trainer.no_progress_s) while {in_flight} "
        "tickets are in flight; see the files of WORKDIR/logs"
    )
