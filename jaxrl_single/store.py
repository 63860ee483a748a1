"""The durable queue between rollout and trainer: one file per trajectory. No jax, no pickle.

A file holds typed arrays (safetensors) and a JSON header with the rest and a checksum. It is
written under a temporary name and renamed, so a reader sees all of it or nothing:

    trajectories/train/SEQUENCE-KEY.safetensors     SEQUENCE orders by completion
    trajectories/eval/...
    trajectories/kept/train/STEP-STAGE/...          consumed, and to stay; nobody trains them again
    trajectories/kept/eval/STEP-STAGE/...
    trajectories/rejected/...                       foreign, torn or invalid files; never used
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from jaxrl_single import atomic, types, workdir

SUFFIX = ".safetensors"
_NAME = re.compile(r"(?P<sequence>\d{20})-(?P<key>\d{9,}-\d+)" + re.escape(SUFFIX))
_FORMAT = "trajectory/1"  # raise it when the header or the arrays change their meaning
_ARRAY_FIELDS = types.TOKEN_FIELDS | types.ACTION_FIELDS | types.ROUTING_FIELDS
_PLAIN_FIELDS = tuple(
    field.name for field in dataclasses.fields(types.Trajectory) if field.name not in _ARRAY_FIELDS
)


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A file that was not used. `key` is None when the file is not of this run."""

    path: pathlib.Path
    key: str | None
    reason: str


class Rejected(types.InvalidTrajectory):
    """`read` met a file that must not be used; it lies in rejected/ now."""

    def __init__(self, rejection: Rejection):
        super().__init__(f"{rejection.path.name} is not used: {rejection.reason}")
        self.rejection = rejection


class TrajectoryStore:
    """Trajectories of one run under one directory; every process opens its own.

    Several processes may write. One process, the trainer, scans, reads and deletes. All methods
    may be called from several threads.

    Args:
      directory: made when it does not exist. Temporary files of dead writers are removed.
      run_id: of this run; files of another run are rejected.
      on_rejected: called with each Rejection; all are also kept in `rejections`.

    Raises:
      workdir.CannotWrite: the directory is not writable.
    """

    def __init__(
        self,
        directory: os.PathLike[str] | str,
        run_id: str,
        *,
        on_rejected: Callable[[Rejection], None] | None = None,
    ):
        self.directory = pathlib.Path(directory)
        self.run_id = run_id
        self.rejections: list[Rejection] = []
        self._on_rejected = on_rejected
        self._lock = threading.Lock()
        self._scanned: dict[str, set[str]] = {split: set() for split in types.SPLITS}
        self._paths: dict[str, pathlib.Path] = {}
        self._written: dict[str, set[str]] = {}
        self._sequence = 0
        self._open()

    def write(self, trajectory: types.Trajectory) -> bool:
        """Validates a trajectory, folds its rewards and stores it.

        Returns:
          False when the store held this key already: an episode that ran twice, because its
          worker died between writing it and handing in the ticket, is stored once.

        Raises:
          types.InvalidTrajectory: an invariant is broken, or the run_id is another's.
          workdir.CannotWrite: the disk is full; nothing half-written stays.
        """
        if trajectory.run_id != self.run_id:
            raise types.InvalidTrajectory(
                f"trajectory {trajectory.key} is of run {trajectory.run_id}, "
                f"this store is of run {self.run_id}"
            )
        if trajectory.error is None:
            folded = types.fold_rewards(trajectory.rewards, trajectory.action_mask)
            trajectory = dataclasses.replace(trajectory, rewards=folded)
        types.validate(trajectory)
        data = encode(trajectory)
        with self._lock:
            if trajectory.key in self._written[trajectory.split]:
                return False
            # The clock orders several writers and restarts; max keeps one writer's order exact.
            self._sequence = max(self._sequence + 1, time.time_ns())
            name = f"{self._sequence:020d}-{trajectory.key}{SUFFIX}"
            workdir.write_bytes(self.directory / trajectory.split / name, data)
            self._written[trajectory.split].add(trajectory.key)
        return True

    def has(self, key: str, split: str = "train") -> bool:
        """True when a file of this key was here at the start or was written by this process."""
        return key in self._written[split]

    def keys(self) -> list[str]:
        """Keys of all files that are here now, of both splits."""
        paths = [path for split in types.SPLITS for path in files(self.directory, split)]
        return [key for path in paths if (key := key_of(path)) is not None]

    def scan(self, split: str = "train") -> list[str]:
        """Keys that no earlier scan returned, in the order in which their episodes finished."""
        with self._lock:
            fresh = []
            for path in files(self.directory, split):
                key = key_of(path)
                if key is None:
                    self._reject(path, None, "its name is not one that the store gives")
                elif key not in self._scanned[split]:
                    self._scanned[split].add(key)
                    self._paths[key] = path
                    fresh.append(key)
                elif self._paths.get(key) != path:
                    path.unlink(missing_ok=True)  # the same episode, run twice by two workers
            return fresh

    def read(self, key: str) -> types.Trajectory:
        """The trajectory of a key that `scan` returned.

        Raises:
          Rejected: the file is foreign, torn or invalid. It was moved to rejected/ and reported;
            it must not be used. Its ticket is still to be done, as the next attempt.
          KeyError: no scan returned this key, or it was deleted.
        """
        path = self._paths[key]
        try:
            trajectory = decode(path.read_bytes())
            if trajectory.run_id != self.run_id:
                raise types.InvalidTrajectory(
                    f"it is of run {trajectory.run_id}, this run is {self.run_id}"
                )
            if trajectory.key != key or trajectory.split != path.parent.name:
                raise types.InvalidTrajectory(
                    f"it holds {trajectory.split} trajectory {trajectory.key}"
                )
        except (OSError, types.InvalidTrajectory) as error:
            with self._lock:
                del self._paths[key]
                self._scanned[path.parent.name].discard(key)  # a sound file of it may follow
                raise Rejected(self._reject(path, key, str(error))) from error
        return trajectory

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes the files of scanned keys; call it when a checkpoint covers them.

        The keys stay known: they are not returned by a later scan.
        """
        with self._lock:
            for key in keys:
                path = self._paths.pop(key, None)
                if path is not None:
                    path.unlink(missing_ok=True)

    def keep(self, folders: Mapping[str, str]) -> None:
        """Moves files of scanned keys into folders "SPLIT/STEP-STAGE" of kept/.

        Call it when a checkpoint covers them. The keys stay known, as those of `delete`.

        Raises:
          workdir.CannotWrite: the directory is not writable; what was not moved is where it was.
        """
        with self._lock:
            for key, folder in folders.items():
                path = self._paths.pop(key, None)
                if path is None:
                    continue
                target = self.directory / "kept" / folder / path.name
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
                except OSError as error:
                    raise workdir.CannotWrite(target, error) from error

    def forget(self, keys: Iterable[str]) -> None:
        """Deletes the files of scanned keys as if they had never been: the keys may come again."""
        keys = list(keys)
        self.delete(keys)
        with self._lock:
            for split in types.SPLITS:
                self._scanned[split] -= set(keys)
                self._written[split] -= set(keys)

    def counts(self) -> dict[str, int]:
        """Number of files now in "train", "eval" and "rejected"."""
        names = (*types.SPLITS, "rejected")
        return {name: len(files(self.directory, name)) for name in names}

    def _open(self) -> None:
        try:
            for split in types.SPLITS:
                (self.directory / split).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise workdir.CannotWrite(self.directory, error) from error
        for split in types.SPLITS:
            atomic.remove_temporaries(self.directory / split)
            paths = files(self.directory, split)
            self._written[split] = {key for path in paths if (key := key_of(path)) is not None}
            sequences = [_NAME.fullmatch(path.name) for path in paths]
            self._sequence = max(
                [self._sequence, *(int(match["sequence"]) for match in sequences if match)]
            )

    def _reject(self, path: pathlib.Path, key: str | None, reason: str) -> Rejection:
        target = self.directory / "rejected" / path.name
        try:
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
        except OSError as error:
            reason = f"{reason} (and it could not be moved away: {error})"
            target = path
        rejection = Rejection(target, key, reason)
        self.rejections.append(rejection)
        logging.warning("trajectory file %s is not used: %s", target, reason)
        if self._on_rejected is not None:
            self._on_rejected(rejection)
        return rejection


def files(directory: os.PathLike[str] | str, split: str) -> list[pathlib.Path]:
    """Trajectory files of a split, in the order in which their episodes finished."""
    try:
        names = os.listdir(pathlib.Path(directory) / split)
    except FileNotFoundError:
        return []
    return [pathlib.Path(directory) / split / name for name in sorted(names) if _visible(name)]


def kept(directory: os.PathLike[str] | str, split: str) -> dict[pathlib.Path, int]:
    """Folders of trajectories that stay, with the step of each, by step."""
    try:
        names = os.listdir(pathlib.Path(directory) / "kept" / split)
    except FileNotFoundError:
        return {}
    steps = {name: int(name.partition("-")[0]) for name in names if name[:1].isdecimal()}
    order = sorted(steps, key=lambda name: (steps[name], name))
    return {pathlib.Path(directory) / "kept" / split / name: steps[name] for name in order}


def all_files(directory: os.PathLike[str] | str, split: str) -> list[pathlib.Path]:
    """What is kept of a split, by step, and then what waits to be consumed or covered."""
    folders = kept(directory, split)
    staying = [path for folder in folders for path in files(folder.parent, folder.name)]
    return [*staying, *files(directory, split)]


def key_of(path: pathlib.Path) -> str | None:
    """Key of the trajectory that a file of this name holds, None for a foreign name."""
    match = _NAME.fullmatch(path.name)
    return match["key"] if match else None


def encode(trajectory: types.Trajectory) -> bytes:
    """One trajectory as a safetensors file: its arrays and a JSON header.

    Optional arrays that were not recorded are absent.
    """
    given = {name: getattr(trajectory, name) for name in _ARRAY_FIELDS}
    arrays = {name: array for name, array in given.items() if array is not None}
    fields = to_tokens(trajectory)
    record = {name: fields[name] for name in _PLAIN_FIELDS}
    header = json.dumps(workdir.plain(record), allow_nan=False, sort_keys=True)
    metadata = {"format": _FORMAT, "trajectory": header, "blake2b": _checksum(header, arrays)}
    return safetensors.numpy.save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata
    )


def decode(data: bytes) -> types.Trajectory:
    """The inverse of `encode`, validated.

    Raises:
      types.InvalidTrajectory: torn, of another format, or an invariant is broken.
    """
    try:
        trajectory = _decode(data)
        types.validate(trajectory)
    except types.InvalidTrajectory:
        raise
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        # Whatever a foreign or torn file does to the parsers, it is one kind of fault to us.
        raise types.InvalidTrajectory(f"the file is torn or no trajectory ({error!r})") from error
    return trajectory


def to_tokens(trajectory: types.Trajectory) -> dict[str, Any]:
    """Every field of a trajectory, arrays as arrays; `workdir.plain` makes it JSON.

    Arrays that were not recorded are None.
    """
    return {
        field.name: dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value
        for field in dataclasses.fields(trajectory)
        for value in [getattr(trajectory, field.name)]
    }


def to_messages(trajectory: types.Trajectory) -> dict[str, Any]:
    """A trajectory as a conversation, for people and for tools that read chat `messages`."""
    return {
        "id": f"{trajectory.run_id}/{trajectory.key}",
        "task_id": trajectory.task_id,
        "messages": trajectory.messages,
        "reward": trajectory.reward,
        "success": trajectory.success,
        "truncated": trajectory.truncated,
        "error": None if trajectory.error is None else trajectory.error.kind,
    }


def _decode(data: bytes) -> types.Trajectory:
    arrays = safetensors.numpy.load(data)
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    if metadata.get("format") != _FORMAT:
        raise types.InvalidTrajectory(f"format {metadata.get('format')!r}, expected {_FORMAT!r}")
    header = metadata["trajectory"]
    if metadata["blake2b"] != _checksum(header, arrays):
        raise types.InvalidTrajectory("the file is torn: its checksum does not match")
    record = {"facts": {}, **json.loads(header)}  # older files have none
    fits = set(types.TOKEN_FIELDS) <= set(arrays) <= set(_ARRAY_FIELDS)
    if sorted(record) != sorted(_PLAIN_FIELDS) or not fits:
        raise types.InvalidTrajectory("its fields are not those of a trajectory")
    if record["error"] is not None:
        record["error"] = types.EpisodeError(**record["error"])
    record["finish_reasons"] = tuple(record["finish_reasons"])
    record["messages"] = tuple(record["messages"])
    return types.Trajectory(**record, **arrays)


def _checksum(header: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(header.encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _visible(name: str) -> bool:
    return not name.startswith(".")
