"""Shows how far a command is: a bar in a terminal, a line now and then anywhere else."""

from __future__ import annotations

import time
from typing import Any, TextIO

_LINE_EVERY_S = 10.0  # where nobody redraws


class Bar:
    """A count of things done on a stream; never raises, because a display must not end a run.

        with Bar("answers", sys.stderr) as bar:
            ...  bar.show(done, total, "612 tokens/s")  ...

    Args:
      what: is counted.
      stream: a terminal or not.
    """

    def __init__(self, what: str, stream: TextIO):
        self._what = what
        self._stream = stream
        self._progress: Any = None
        self._last: tuple[int, int, str] | None = None
        self._last_line = -float("inf")

    def __enter__(self) -> Bar:
        if self._stream.isatty():
            from rich import console, progress  # not loaded where nobody sees it

            self._progress = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[text]}"),
                console=console.Console(file=self._stream),
            )
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        elif self._last is not None and self._last_line != -float("inf"):
            self._print(*self._last)

    def show(self, done: int, total: int, text: str) -> None:
        """Call it as often as you like."""
        self._last = (done, total, text)
        if self._progress is not None:
            if not self._progress.task_ids:
                self._progress.add_task(self._what, total=total, text=text)
            self._progress.update(self._progress.task_ids[0], completed=done, text=text)
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._print(done, total, text)

    def _print(self, done: int, total: int, text: str) -> None:
        self._last_line = time.monotonic()
        try:
            print(f"{self._what} {done}/{total}  {text}", file=self._stream, flush=True)
        except OSError:
            self._last_line = float("inf")  # nobody reads any more
