"""Names of all files of a workdir, and how they are written: whole or not at all. No jax.

run.json          run_id and when it began; never changes
config.json       the config of the run; a rerun is compared with it
provenance.json   digests of what the run is made of (supervise/provenance.py)
lock              held by the parent process of a running run
processes.json    the processes of the newest start: pid and start time
status.json       where the run is now: `Status`
metrics.jsonl     one line per stage and logged step
evals.jsonl       one line per evaluation: `Eval`
best/             the policy of the best evaluation, and best.json: that evaluation
trajectories/     the store (store.py)
samples/          STEP.safetensors: the evidence of kept steps (evidence.py)
tokenizer/        of the policy: tokenizer.json, and what else of text its checkpoint had
samplers/         NAME.json: the URL of each sampler that listens
tickets/          orders of the trainer to rollout
weights/          published versions
checkpoints/      one directory per stage
tensorboard/      one directory per stage
logs/             NAME.log and NAME.heartbeat of each process
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import fcntl
import json
import math
import os
import pathlib
import secrets
import time
from collections.abc import Callable
from typing import Any

from jaxrl_single import atomic

NOBODY = {"written": 0, "trained": 0, "dropped_stale": 0, "errors": 0, "pending": 0}


class BrokenFile(ValueError):
    """A file of the workdir cannot be understood; the message names it and what to do."""


class CannotWrite(RuntimeError):
    """The disk is full, or the place is not writable; the message names the path."""

    def __init__(self, path: os.PathLike[str] | str, error: OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space and run the same command again: it continues"
        elif error.errno == errno.ENOENT:
            advice = "make its directory first or choose another"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            advice = "a file has the name of a directory that is needed; choose another place"
        else:
            advice = "make the directory writable or choose another"
        reason = os.strerror(error.errno) if error.errno else str(error)
        super().__init__(f"cannot write {path}: {reason}; {advice}")


class Workdir:
    """The paths of a run. `root` need not exist; see `create`."""

    def __init__(self, root: os.PathLike[str] | str):
        self.root = pathlib.Path(root).expanduser().absolute()
        self.run = self.root / "run.json"
        self.config = self.root / "config.json"
        self.provenance = self.root / "provenance.json"
        self.lock = self.root / "lock"
        self.processes = self.root / "processes.json"
        self.status = self.root / "status.json"
        self.metrics = self.root / "metrics.jsonl"
        self.evals = self.root / "evals.jsonl"
        self.trajectories = self.root / "trajectories"
        self.samples = self.root / "samples"
        self.tokenizer = self.root / "tokenizer"
        self.tickets = self.root / "tickets"
        self.samplers = self.root / "samplers"
        self.weights = self.root / "weights"
        self.best = self.root / "best"
        self.checkpoints = self.root / "checkpoints"
        self.tensorboard = self.root / "tensorboard"
        self.logs = self.root / "logs"

    def stage_checkpoints(self, stage: str) -> pathlib.Path:
        return self.checkpoints / stage

    def log(self, process: str) -> pathlib.Path:
        return self.logs / f"{process}.log"

    def heartbeat(self, process: str) -> pathlib.Path:
        return self.logs / f"{process}.heartbeat"


@dataclasses.dataclass(frozen=True)
class Status:
    """Where a run is. The trainer writes it at every step and change of stage.

    Attributes:
      stage: "warm_start", "value_pretraining", "rl", "final", "done" ...
      step: steps done of this stage.
      num_steps: steps of this stage in all; 0 when it has no steps.
      policy_version: newest published version; -1 before the first.
      text: one line for people; may be empty.
      trajectories: the counts of `NOBODY`, of the trajectories for training.
      params_sha256: of the policy at this step, None where nobody computed it.
      time: seconds since 1970 of the write; filled in by `write_status`.
    """

    stage: str
    step: int
    num_steps: int
    policy_version: int = -1
    text: str = ""
    trajectories: dict[str, int] = dataclasses.field(default_factory=lambda: dict(NOBODY))
    params_sha256: str | None = None
    time: float = 0.0


@dataclasses.dataclass(frozen=True)
class Eval:
    """One evaluation: `success` of `n` held-out tasks with its 95 % interval.

    `success` is None when n is 0. `step` counts the policy updates of RL that the evaluated
    weights have seen; all tokens of the evaluation were sampled from `policy_version`. `outcomes`
    says of each task with a verdict whether it succeeded; None in records that are older.
    """

    stage: str
    step: int
    policy_version: int
    n: int
    success: float | None
    ci_low: float
    ci_high: float
    outcomes: dict[str, bool] | None = None


def create(root: os.PathLike[str] | str) -> tuple[Workdir, str]:
    """Makes the directories of a workdir and its run.json, or opens those of an earlier start.

    Returns:
      The paths and the run_id, which stays the same for all starts in this workdir.

    Raises:
      CannotWrite: not writable, or the disk is full.
      BrokenFile: run.json is not one that this function wrote.
    """
    paths = Workdir(root)
    try:
        for directory in (paths.root, paths.logs, paths.trajectories, paths.tickets, paths.weights):
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(paths.root, error) from error
    if not paths.run.exists():
        run_id = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(4)
        write_json(paths.run, {"run_id": run_id, "started": time.time()})
    return paths, run_id_of(paths)


def run_id_of(paths: Workdir) -> str:
    """The run_id of an existing workdir.

    Raises:
      BrokenFile: there is no run in this directory, or its run.json is broken.
    """
    return _read_run(paths)["run_id"]


def began(paths: Workdir) -> datetime.datetime:
    """When the run of an existing workdir began, in UTC: the same on all of its machines.

    Raises:
      BrokenFile: as `run_id_of`.
    """
    return datetime.datetime.fromtimestamp(_read_run(paths)["started"], datetime.UTC)


def _read_run(paths: Workdir) -> dict[str, Any]:
    record = read_json(paths.run)
    if record is None:
        raise BrokenFile(f"{paths.root} holds no run: {paths.run.name} is missing")
    kinds = {"run_id": str, "started": (int, float)}
    if not isinstance(record, dict) or not all(
        isinstance(record.get(name), kind) for name, kind in kinds.items()
    ):
        raise BrokenFile(f"{paths.run}: expected an object with a run_id and when it started")
    return record


def weights_directory(paths: Workdir, directory: str) -> pathlib.Path:
    """Where versions are published; `directory` outside of the workdir gets one of this run."""
    return pathlib.Path(directory, run_id_of(paths)) if directory else paths.weights


def write_status(paths: Workdir, status: Status) -> None:
    """Replaces status.json, stamped with the present time."""
    record = dataclasses.asdict(status)
    write_json(paths.status, {**record, "time": time.time()})


def read_status(paths: Workdir) -> Status | None:
    """The newest status, None before the first."""
    return _record(Status, read_json(paths.status), paths.status)


def record_eval(paths: Workdir, evaluation: Eval) -> None:
    """Appends to evals.jsonl; an earlier record of the same stage and step is replaced.

    A run that continues from a checkpoint may repeat an evaluation; it then stays one line.
    """
    same = (evaluation.stage, evaluation.step)
    filter_jsonl(paths.evals, lambda record: (record.get("stage"), record.get("step")) != same)
    append_jsonl(paths.evals, dataclasses.asdict(evaluation))


def read_evals(paths: Workdir) -> list[Eval]:
    """All evaluations in the order in which they were made."""
    return [_record(Eval, record, paths.evals) for record in read_jsonl(paths.evals)]


def record_best(paths: Workdir, evaluation: Eval) -> None:
    """Says which evaluation the weights in best/ are of."""
    write_json(paths.best / "best.json", {**dataclasses.asdict(evaluation), "outcomes": None})


def read_best(paths: Workdir) -> Eval | None:
    """The evaluation whose weights are kept in best/; None when there is none.

    One that evals.jsonl does not hold any more is none: the run went back to before it.
    """
    best = _record(Eval, read_json(paths.best / "best.json"), paths.best / "best.json")
    known = [dataclasses.replace(one, outcomes=None) for one in read_evals(paths)]
    return best if best in known else None


def newest_checkpoint(directory: pathlib.Path) -> tuple[int, dict[str, Any]] | None:
    """Step and metadata of the newest complete checkpoint under `directory`, read without jax.

    A checkpoint gets its final name, the bare step, when it is complete (checkpoint.py).
    """
    for step in reversed(checkpoint_steps(directory)):
        metadata = read_json(directory / str(step) / "metadata" / "metadata")
        if metadata is not None:
            return step, metadata
    return None


def checkpoint_steps(directory: pathlib.Path) -> list[int]:
    """Steps of the checkpoints under `directory`, ascending."""
    return sorted(int(p.name) for p in _children(directory) if p.name.isdecimal())


def has_checkpoint(paths: Workdir) -> bool:
    """True when a finished stage or a step of RL can be continued from."""
    stages = _children(paths.checkpoints)
    return any(newest_checkpoint(stage) is not None for stage in stages)


def is_running(paths: Workdir) -> bool:
    """True while the parent process of a run holds the lock of this workdir."""
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_bytes(path: pathlib.Path, data: bytes) -> None:
    """Writes a file under a temporary name beside it and renames it: whole or not at all.

    Raises:
      CannotWrite: the disk is full or the directory not writable; `path` is as it was.
    """
    temporary = atomic.temporary(path)
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CannotWrite(path, error) from error


def plain(value: Any) -> Any:
    """`value` in types of JSON: arrays to lists, tuples to lists, non-finite numbers to None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes one JSON value atomically. NaN and infinities become null, as JSON has none."""
    write_bytes(path, (json.dumps(plain(value), indent=2, allow_nan=False) + "\n").encode())


def read_json(path: pathlib.Path) -> Any:
    """The value of a JSON file, None when there is no such file.

    Raises:
      BrokenFile: not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise BrokenFile(f"{path} is not JSON ({error}); remove it if it is not needed") from error


def append_jsonl(path: pathlib.Path, record: dict[str, Any]) -> None:
    """Appends one line. One process writes a file; the half line of a killed one is cut off.

    Raises:
      CannotWrite: the disk is full or the file not writable; no half line stays behind.
    """
    line = (json.dumps(plain(record), allow_nan=False) + "\n").encode()
    try:
        with open(path, "a+b", buffering=0) as file:
            end = _end_of_last_line(file)
            file.truncate(end)
            written = file.write(line)
            if written != len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, "short write")
    except OSError as error:
        raise CannotWrite(path, error) from error


def read_jsonl(path: pathlib.Path) -> list[dict[str, Any]]:
    """All complete lines; a last line without its end, of a killed writer, is left out.

    Raises:
      BrokenFile: a complete line is not a JSON object; the message holds its number.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = data.split(b"\n")[:-1]
    return [parse_line(line, path, number) for number, line in enumerate(lines, start=1)]


def parse_line(line: bytes, path: pathlib.Path, number: int) -> dict[str, Any]:
    """One line of a JSONL file.

    Raises:
      BrokenFile: not a JSON object.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise BrokenFile(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise BrokenFile(f"{path}, line {number}: expected a JSON object")
    return record


def filter_jsonl(path: pathlib.Path, keep: Callable[[dict[str, Any]], bool]) -> int:
    """Rewrites the file atomically with the lines that `keep` accepts; returns how many went."""
    records = read_jsonl(path)
    kept = [record for record in records if keep(record)]
    if len(kept) < len(records):
        write_bytes(path, b"".join((json.dumps(record) + "\n").encode() for record in kept))
    return len(records) - len(kept)


def _end_of_last_line(file: Any) -> int:
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 4096)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _record(kind: type, record: Any, path: pathlib.Path) -> Any:
    if record is None:
        return None
    names = {field.name for field in dataclasses.fields(kind)}
    try:
        return kind(**{name: value for name, value in record.items() if name in names})
    except (AttributeError, TypeError) as error:
        raise BrokenFile(f"{path}: not a {kind.__name__} record ({error})") from error


def _children(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []
