"""Starts the processes of a run, watches them, restarts what may be restarted, stops them all.

The main program (the trainer) decides: when it exits with 0, the run is done. When it fails, the
run fails. Another program (the sampler) is restarted a few times. A request to stop goes to the
main program, which saves and exits; then the others are stopped. No jax.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from jaxrl_single import workdir
from jaxrl_single.supervise import child, identity, logs

_STACKS_S = 1.0  # for a silent process to print its stacks before it is killed
_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of a stop as it should be
_SAME_REQUEST_S = 1.0  # `timeout` and shells send a signal twice, to the process and its group


@dataclasses.dataclass(frozen=True)
class Program:
    """One process of a run.

    Attributes:
      name: of its log and heartbeat files.
      argv: the command.
      env: variables that are set besides those of this process.
      main: its end is the end of the run; exactly one program is.
      max_restarts: how often it is started again after it ended, in all; 0 for the main one.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    main: bool = False
    max_restarts: int = 0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the run ended.

    Attributes:
      exit_code: 0 when the main program was done, 128 + SIGNAL when it was stopped, else 1.
      message: for stderr; ends with the first traceback or, where a process has said what is
        wrong, with that. "" when nothing went wrong.
    """

    exit_code: int
    message: str = ""


@dataclasses.dataclass(frozen=True)
class _Failure:
    name: str
    reason: str
    report: str | None  # a message for people, or a traceback, as the process printed it
    tail: str


class _Running:
    """A started program: its process, where its log began, how often it was started."""

    def __init__(self, program: Program, paths: workdir.Workdir):
        self.program = program
        self.restarts = -1
        self._paths = paths
        self.start()

    def start(self) -> None:
        """Starts the program in a process group of its own, its output appended to its log."""
        program, path = self.program, self._paths.log(self.program.name)
        self.restarts += 1
        try:
            path.touch()
        except OSError as error:
            raise workdir.CannotWrite(path, error) from error
        with open(path, "ab") as log:
            log.write(f"--- {program.name}, start {self.restarts + 1}, {time.ctime()}\n".encode())
            log.flush()
            self.log_offset = log.tell()
            self.process = subprocess.Popen(
                program.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                process_group=0,  # a Ctrl-C in the terminal is the supervisor's to pass on
            )
        self.alive_at = time.time()
        self.identity = identity.describe(self.process.pid)

    def exit_code(self) -> int | None:
        """None while it runs. When it has ended, the rest of its process group is ended too."""
        if self.process.returncode is None:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, self.process.pid, options) is None:
                return None
            # Not yet reaped, so its number cannot belong to anybody else.
            identity.kill_group(self.process.pid)
            self.process.wait()
        return self.process.returncode

    def send(self, number: int) -> None:
        if self.exit_code() is None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Ends it and its process group, now."""
        if self.exit_code() is None:
            identity.kill_group(self.process.pid)
            self.process.wait()

    def silent_s(self) -> float:
        """Seconds since the last sign of life."""
        try:
            beat = self._paths.heartbeat(self.program.name).stat().st_mtime
        except FileNotFoundError:
            beat = 0.0
        return time.time() - max(beat, self.alive_at)

    def _environment(self) -> dict[str, str]:
        ours = {"PYTHONUNBUFFERED": "1", child.PARENT_PID: str(os.getpid())}
        return {**os.environ, **self.program.env, **ours}

    def failure(self, reason: str) -> _Failure:
        text = logs.read(self._paths.log(self.program.name), self.log_offset)
        report = logs.last_message(text) or logs.last_traceback(text)
        return _Failure(self.program.name, reason, report, logs.last_lines(text))


class Supervisor:
    """Runs programs to the end of the main one. Use it in the main thread, inside `lock.hold`.

    SIGTERM or SIGINT asks for a stop; a second one, later, does not wait for the checkpoint.

    Args:
      paths: of the run; logs, heartbeats and processes.json go there.
      programs: started in this order; exactly one is main.
      heartbeat_s: a process silent for so long is taken for hung and killed; 0 = never.
      stop_timeout_s: from SIGTERM to SIGKILL.
      tick: called every `poll_s`, for the display; its first exception is noted, then it rests.
      say: called with one line for people at each restart and stop.
    """

    def __init__(
        self,
        paths: workdir.Workdir,
        programs: Sequence[Program],
        *,
        heartbeat_s: float,
        stop_timeout_s: float,
        poll_s: float = 0.2,
        tick: Callable[[], None] | None = None,
        say: Callable[[str], None] = print,
    ):
        mains = [program.name for program in programs if program.main]
        if len(mains) != 1 or len({program.name for program in programs}) != len(programs):
            raise ValueError(f"expected one main program and distinct names, got {programs}")
        self._paths = paths
        self._programs = programs
        self._heartbeat_s = heartbeat_s
        self._stop_timeout_s = stop_timeout_s
        self._poll_s = poll_s
        self._tick = tick
        self._say = say
        self._running: dict[str, _Running] = {}
        self._failures: list[_Failure] = []
        self._stop_requests = 0
        self._stop_signal = signal.SIGTERM
        self._requested_at = -float("inf")

    def run(self) -> Outcome:
        """Starts everything and returns when everything has ended.

        Raises:
          workdir.CannotWrite: a log cannot be written; every process was ended.
        """
        handlers = self._catch_signals()
        try:
            for program in self._programs:
                self._running[program.name] = _Running(program, self._paths)
                self._record()
            outcome = self._watch()
            self._stop_others()
            return outcome
        finally:
            for running in self._running.values():
                running.kill()
            self._record()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _watch(self) -> Outcome:
        # The main program first: when it is done, the end of another one is no failure.
        order = sorted(self._running.values(), key=lambda running: not running.program.main)
        main = order[0]
        turn = time.time()
        while True:
            if self._stop_requests:
                return self._stop_main(main)
            self._forgive_sleep(time.time() - turn)
            turn = time.time()
            for running in order:
                reason = self._trouble(running)
                if reason == "" and running is main:
                    return Outcome(main.process.returncode)
                if reason is not None and not self._restart(running, reason):
                    if running is not main:
                        self._stop_main(main)
                    return self._failed()
            self._show()
            time.sleep(self._poll_s)

    def _forgive_sleep(self, turn_s: float) -> None:
        """A machine that was suspended makes every process look silent; they start afresh."""
        if turn_s > 2 * self._poll_s + _STACKS_S + 1.0:
            for running in self._running.values():
                running.alive_at = time.time()

    def _trouble(self, running: _Running) -> str | None:
        """None while all is well, "" when the main program is done, else what has happened."""
        code = running.exit_code()
        if code is not None:
            return "" if code in (0, *_STOPPED) and running.program.main else _reason(code)
        silent_s = running.silent_s()
        if not self._heartbeat_s or silent_s < self._heartbeat_s:
            return None
        running.send(child.STACKS_SIGNAL)
        time.sleep(_STACKS_S)
        running.kill()
        return f"gave no sign of life for {silent_s:.0f} s (supervisor.heartbeat_s) and was killed"

    def _restart(self, running: _Running, reason: str) -> bool:
        """Starts a program that has ended once more; False when it may not be."""
        name, allowed = running.program.name, running.program.max_restarts
        self._failures.append(running.failure(reason))
        if running.restarts >= allowed:
            return False
        self._say(f"{name} {reason}; restart {running.restarts + 1} of {allowed}")
        running.start()
        self._record()
        return True

    def _stop_main(self, main: _Running) -> Outcome:
        self._say(f"stopping; {main.program.name} may save a checkpoint first")
        code = self._terminate(main, patience=self._stop_requests)
        if code == 0:  # it had just finished
            return Outcome(0)
        # SIGTERM itself ends a program that has not come to its handler, nor to anything to save.
        if code in (-signal.SIGTERM, *_STOPPED):
            return Outcome(128 + self._stop_signal)
        reason = _reason(code)
        if self._stop_requests > 1:
            reason = "was killed before it had stopped, at the second request"
        elif code == -signal.SIGKILL:
            reason = f"did not stop within {self._stop_timeout_s:g} s (supervisor.stop_timeout_s)"
        self._failures.append(main.failure(reason))
        return self._failed()

    def _stop_others(self) -> None:
        others = [running for running in self._running.values() if not running.program.main]
        for running in others:
            running.send(signal.SIGTERM)
        for running in others:
            self._terminate(running, patience=1)

    def _terminate(self, running: _Running, *, patience: int) -> int:
        """SIGTERM; SIGKILL after stop_timeout_s, or when there are more requests than patience."""
        running.send(signal.SIGTERM)
        deadline = time.monotonic() + self._stop_timeout_s
        while running.exit_code() is None:
            if time.monotonic() > deadline or self._stop_requests > patience:
                running.kill()
            self._show()
            time.sleep(0.05)
        return running.process.returncode

    def _failed(self) -> Outcome:
        lines = []
        for name in dict.fromkeys(failure.name for failure in self._failures):
            of_name = [failure for failure in self._failures if failure.name == name]
            lines += [f"{name} {failure.reason}" for failure in of_name]
            lines.append(f"its log: {self._paths.log(name)}")
        first = next((f for f in self._failures if f.report), None)
        if first is None:
            first = self._failures[0]
            lines += [f"no traceback; the last lines of {first.name}:", first.tail]
        else:
            report = first.report or ""
            lines += ["" if report.startswith(logs.MESSAGE) else _heading(first), report]
        lines = [line for line in lines if line]
        return Outcome(1, "\n".join(lines))

    def _show(self) -> None:
        if self._tick is None:
            return
        try:
            self._tick()
        except Exception as error:  # a display must not end a run
            self._tick = None
            self._say(f"the display has failed and stays off: {error!r}")

    def _record(self) -> None:
        """processes.json, so that a later start knows what this one has left if it is killed."""
        children = {
            name: {**running.identity, "restarts": running.restarts}
            for name, running in self._running.items()
        }
        record = {"parent": identity.describe(os.getpid()), "children": children}
        workdir.write_json(self._paths.processes, record)

    def _catch_signals(self) -> dict[int, object]:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("Supervisor.run takes signals, so it belongs into the main thread")

        def request(number: int, frame: object) -> None:
            now = time.monotonic()
            if now - self._requested_at > _SAME_REQUEST_S:
                self._stop_signal = signal.Signals(number)
                self._stop_requests += 1
            self._requested_at = now

        numbers = (signal.SIGTERM, signal.SIGINT)
        return {number: signal.signal(number, request) for number in numbers}


def _heading(failure: _Failure) -> str:
    return f"the first traceback, of {failure.name}:"


def _reason(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"
