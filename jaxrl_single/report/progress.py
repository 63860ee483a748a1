"""Shows a run while it runs: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from jaxrl_single import workdir
from jaxrl_single.metrics import alarms
from jaxrl_single.report import snapshot as snapshot_lib
from jaxrl_single.report import wording

_LIVE_EVERY_S = 0.5  # between looks at the files
_PLAIN_EVERY_S = 1.0
_LINE_EVERY_S = 10.0  # between plain lines of the same stage


class Display:
    """Follows the files of a workdir; never raises, because a display must not end a run.

        with Display(paths) as display:
            ...  display.tick()  ...

    Args:
      paths: of the run.
      stream: a terminal or not.
    """

    def __init__(self, paths: workdir.Workdir, stream: TextIO | None = None):
        self._reader = snapshot_lib.Reader(paths)
        self._title = str(paths.root)
        self._stream = stream or sys.stdout
        self._live: Any = None
        self._last_look = -float("inf")
        self._last_line = -float("inf")
        self._shown: tuple[str, str] | None = None
        self._shown_step = -1
        self._shown_evaluations: int | None = None
        self._shown_alarms: set[str] | None = None
        self._off = False

    def __enter__(self) -> Display:
        if self._stream.isatty():
            from rich import console, live  # not loaded where nobody sees it

            self._live = live.Live(
                console=console.Console(file=self._stream), auto_refresh=False, transient=False
            )
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._last_look = self._last_line = -float("inf")
        self.tick()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tick(self) -> None:
        """Looks at the files if the last look is some time ago; call it as often as you like."""
        now = time.monotonic()
        every = _PLAIN_EVERY_S if self._live is None else _LIVE_EVERY_S
        if self._off or now - self._last_look < every:
            return
        self._last_look = now
        try:
            snapshot = self._reader.snapshot()
            if snapshot is not None:
                self._show(snapshot, now)
        except workdir.BrokenFile as error:
            self._off = True
            self.say(f"the display stops: {error}")
        except OSError:
            self._off = True  # nobody reads what we print any more

    def say(self, line: str) -> None:
        """Prints one line, above the table where there is one."""
        try:
            if self._live is not None:
                self._live.console.print(line, markup=False, highlight=False)
            else:
                print(line, file=self._stream, flush=True)
        except OSError:
            self._off = True

    def _show(self, snapshot: snapshot_lib.Snapshot, now: float) -> None:
        self._say_evaluations(snapshot)
        self._say_alarms(snapshot)
        if self._live is not None:
            self._live.update(table(self._title, snapshot), refresh=True)
            return
        status = snapshot.status
        stage = (status.stage, status.text)
        due = now - self._last_line >= _LINE_EVERY_S and status.step != self._shown_step
        if stage != self._shown or due:
            self._shown, self._shown_step, self._last_line = stage, status.step, now
            self.say(line(snapshot))

    def _say_evaluations(self, snapshot: snapshot_lib.Snapshot) -> None:
        """New evaluations only: those of an earlier start were told then."""
        done = len(snapshot.evaluations)
        told = done if self._shown_evaluations is None else self._shown_evaluations
        self._shown_evaluations = done
        for evaluation in snapshot.evaluations[told:]:
            where = f"{wording.stage(evaluation.stage)}, step {evaluation.step}"
            self.say(f"held-out success, {where}: {wording.success(evaluation)}")

    def _say_alarms(self, snapshot: snapshot_lib.Snapshot) -> None:
        """Each once, when it begins; those of an earlier start were told then."""
        names = {raised.alarm.name for raised in snapshot.alarms}
        told = names if self._shown_alarms is None else self._shown_alarms
        self._shown_alarms = told | names
        for raised in snapshot.alarms:
            if raised.alarm.name not in told:
                self.say(alarms.sentence(raised))


def line(snapshot: snapshot_lib.Snapshot) -> str:
    """A snapshot in one line."""
    head = wording.stage(snapshot.status.stage)
    if snapshot.status.text:
        head += f" ({snapshot.status.text})"
    return "  ".join([head, *(f"{label} {value}" for label, value in wording.rows(snapshot))])


def table(title: str, snapshot: snapshot_lib.Snapshot) -> Any:
    """A snapshot as a table for a terminal."""
    from rich import box, text
    from rich import table as rich_table

    status = snapshot.status
    head = " ".join(filter(None, [wording.stage(status.stage), status.text]))
    grid = rich_table.Table(title=text.Text(title), box=box.ROUNDED, show_header=False)
    grid.add_column(style="bold")
    grid.add_column(min_width=30)
    grid.add_row("stage", text.Text(head))
    for label, value in wording.rows(snapshot):
        grid.add_row(label, text.Text(value))
    if status.num_steps:
        done = min(1.0, status.step / status.num_steps)
        filled = round(30 * done)
        grid.add_row("", text.Text("━" * filled + "╌" * (30 - filled), style="cyan"))
    return grid
