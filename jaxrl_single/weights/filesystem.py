"""Weights in a directory: one sub-directory per version. On /dev/shm it is shared memory.

    v000000012/params.safetensors   tensors by path
               manifest.json        run_id, version, metadata, dtype, shape and sha256 per tensor
               STABLE               written last

A version is written in a hidden directory beside the others and renamed, so readers see all of it
or nothing; pruning renames it away before deleting, so the same holds then. The marker guards the
copies that other tools make file by file. Nothing is fsynced: after a power cut the trainer's
checkpoint is the record, and a version that lost bytes fails its checksums.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
from collections.abc import Iterable
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from jaxrl_single import param_tree, workdir
from jaxrl_single.weights import base

MARKER = "STABLE"
_TENSORS = "params.safetensors"
_MANIFEST = "manifest.json"
_HIDDEN = (".writing-", ".pruned-")  # of the one writer; left over only when it was killed
_BLOCK_BYTES = 2**20  # read at a time
_VERSION = re.compile(r"v(\d{9,})")
_LARGEST_VERSION = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor on disk; `tensor[index]` reads a part of it."""

    file: pathlib.Path
    path: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        # Opened for each part: the pages of an open file count as memory of this process.
        with safetensors.safe_open(self.file, framework="np") as tensors:
            if not self.shape:
                return tensors.get_tensor(self.path)[index]
            return tensors.get_slice(self.path)[index]

    def sha256(self) -> str:
        """As `base.tensor_sha256` of the whole; InvalidWeights if a number of it is not finite."""
        digest = hashlib.sha256()
        for part in self._parts():
            array = np.asarray(self[part])
            base.refuse_not_finite(self.file, self.path, array)
            digest.update(base.bytes_of(array))
        return digest.hexdigest()

    def _parts(self) -> list[Any]:
        """Indices of blocks of rows, of _BLOCK_BYTES or of one row, that make up the whole."""
        if not self.shape:
            return [()]
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        rows = max(1, _BLOCK_BYTES // max(1, row_bytes))
        size = self.shape[0]  # beyond which safetensors refuses to read
        return [slice(start, min(start + rows, size)) for start in range(0, size, rows)]


class FileWeights:
    """A `base.WeightStore` in `directory`, for the versions of run `run_id` only."""

    def __init__(self, directory: str | os.PathLike, run_id: str):
        """Makes the directory.

        Raises:
          workdir.CannotWrite: it can't be made.
        """
        self.directory = pathlib.Path(directory)
        self.run_id = run_id
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise workdir.CannotWrite(self.directory, error) from error

    def publish(self, version: int, params: base.Params, *, metadata: dict[str, Any]) -> str:
        """See `base.WeightStore.publish`. Also reclaims what a killed writer left behind."""
        newest = self.latest()
        if version < 0 or (newest is not None and version <= newest):
            raise ValueError(
                f"{self.directory}: cannot publish version {version}, version {newest} is there; "
                "versions count up and are never reused, publish latest() + 1"
            )
        self._reclaim()
        writing = self.directory / f"{_HIDDEN[0]}{version}-{os.getpid()}"
        try:
            sha256 = self._write(writing, version, params, metadata)
            writing.rename(self._place(version))
        except (OSError, safetensors.SafetensorError) as error:
            raise workdir.CannotWrite(self._place(version), _os_error(error)) from error
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        return sha256

    def latest(self) -> int | None:
        versions = self.versions()
        return versions[-1] if versions else None

    def versions(self) -> list[int]:
        found = []
        for name in os.listdir(self.directory):
            match = _VERSION.fullmatch(name)
            if match and (self.directory / name / MARKER).exists():
                found.append(int(match.group(1)))
        return sorted(found)

    def fetch(self, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
        place = self._place(version)
        try:
            return self._read(place, version)
        except FileNotFoundError as error:
            raise self._missing(place, version, error) from error

    def open(self, version: int) -> dict[str, StoredTensor]:
        """The tensors of a version by path, checked and still on disk; errors as of `fetch`.

        It reads each tensor once, by parts, so a version may be larger than memory.
        """
        place = self._place(version)
        try:
            return _open(place, self._read_manifest(place, version))
        except FileNotFoundError as error:
            raise self._missing(place, version, error) from error

    def prune(self, keep: int, pinned: Iterable[int] = ()) -> list[int]:
        if keep < 1:
            raise ValueError(f"weights.keep is {keep}, at least the newest version stays: >= 1")
        versions, kept = self.versions(), set(pinned)
        deleted = [version for version in versions[:-keep] if version not in kept]
        for version in deleted:
            self._hide(version)
        self._reclaim()
        return deleted

    def take_only(self, version: int, source: FileWeights) -> None:
        """Makes a version of another store the only one here, linked where that can be.

        Raises:
          base.MissingVersion: the other store has it no more.
          workdir.CannotWrite: it can't be written; what was here is still here.
        """
        if version not in source.versions():
            raise base.MissingVersion(f"{source.directory}: no version {version} any more")
        self._reclaim()
        writing = self.directory / f"{_HIDDEN[0]}{version}-{os.getpid()}"
        try:
            shutil.copytree(source._place(version), writing, copy_function=_link)
            if self._place(version).exists():
                self._hide(version)
            writing.rename(self._place(version))
        except OSError as error:
            raise workdir.CannotWrite(self._place(version), error) from error
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        for other in self.versions():
            if other != version:
                self._hide(other)
        self._reclaim()

    def forget_after(self, version: int) -> list[int]:
        """Deletes the versions above `version`; returns them.

        For a trainer that goes back to a checkpoint while nobody else reads this directory
        (`sync` mode): it will publish the same bytes under the same numbers again.
        """
        forgotten = [number for number in self.versions() if number > version]
        for number in forgotten:
            self._hide(number)
        self._reclaim()
        return forgotten

    def _missing(
        self, place: pathlib.Path, version: int, error: FileNotFoundError
    ) -> base.InvalidWeights:
        if not place.exists():
            return base.MissingVersion(
                f"{place}: no version {version}; never published, or pruned meanwhile "
                f"(there are {self.versions()})"
            )
        missing = pathlib.Path(error.filename or "").name
        return base.InvalidWeights(f"{place}: torn, {missing} is missing")

    def _place(self, version: int) -> pathlib.Path:
        if version > _LARGEST_VERSION:  # of more digits than the name of a file may have
            raise base.MissingVersion(f"{self.directory}: versions end at {_LARGEST_VERSION}")
        return self.directory / f"v{version:09d}"

    def _hide(self, version: int) -> None:
        """Readers see all of it or nothing, also while it is deleted."""
        self._place(version).rename(self.directory / f"{_HIDDEN[1]}{version}-{os.getpid()}")

    def _reclaim(self) -> None:
        for name in os.listdir(self.directory):
            if name.startswith(_HIDDEN):
                shutil.rmtree(self.directory / name, ignore_errors=True)

    def _write(
        self, writing: pathlib.Path, version: int, params: base.Params, metadata: dict[str, Any]
    ) -> str:
        flat = base.arrays_of(params)
        for path, array in flat.items():
            base.refuse_not_finite(self._place(version), path, array)
        tensors = {path: base.describe(array) for path, array in flat.items()}
        sha256 = base.combined_sha256(tensors)
        manifest = {
            "run_id": self.run_id,
            "version": version,
            "sha256": sha256,
            "metadata": metadata,
            "tensors": tensors,
        }
        writing.mkdir()
        safetensors.numpy.save_file(flat, writing / _TENSORS)
        (writing / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        (writing / MARKER).touch()
        return sha256

    def _read(self, place: pathlib.Path, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
        manifest = self._read_manifest(place, version)
        try:
            flat = safetensors.numpy.load_file(place / _TENSORS)
        except safetensors.SafetensorError as error:
            raise base.InvalidWeights(
                f"{place}: {_TENSORS} is torn or corrupt ({error})"
            ) from error
        _check_tensors(place, flat, manifest["tensors"])
        if base.combined_sha256(manifest["tensors"]) != manifest["sha256"]:
            raise base.InvalidWeights(f"{place}: {_MANIFEST} contradicts its own checksum")
        return param_tree.unflatten(flat), manifest["metadata"]

    def _read_manifest(self, place: pathlib.Path, version: int) -> dict[str, Any]:
        text = (place / _MANIFEST).read_text()
        (place / MARKER).stat()
        try:
            manifest = json.loads(text)
            run_id, named = manifest["run_id"], manifest["version"]
            complete = {"sha256", "metadata", "tensors"} <= set(manifest)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise base.InvalidWeights(f"{place}: {_MANIFEST} is torn ({error!r})") from error
        if run_id != self.run_id:
            raise base.InvalidWeights(
                f"{place}: belongs to run {run_id!r}, this is run {self.run_id!r}; "
                "give each run a weights directory of its own"
            )
        if named != version or not complete:
            raise base.InvalidWeights(
                f"{place}: {_MANIFEST} is of version {named!r} and "
                f"{'complete' if complete else 'incomplete'}, expected version {version}, complete"
            )
        return manifest


def _link(source: str, target: str) -> None:
    """Files of a version never change, so two stores may share them."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _os_error(error: Exception) -> OSError:
    """What the operating system said; safetensors writes its number into the message only."""
    if isinstance(error, OSError):
        return error
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), str(error)) if number else OSError(str(error))


def _open(place: pathlib.Path, manifest: dict[str, Any]) -> dict[str, StoredTensor]:
    tensors = {
        path: StoredTensor(place / _TENSORS, path, tuple(facts["shape"]), np.dtype(facts["dtype"]))
        for path, facts in manifest["tensors"].items()
    }
    try:
        odd = [
            path
            for path, one in tensors.items()
            if one.sha256() != manifest["tensors"][path]["sha256"]
        ]
    except safetensors.SafetensorError as error:
        raise base.InvalidWeights(f"{place}: {_TENSORS} is torn or corrupt ({error})") from error
    if odd:
        raise base.InvalidWeights(f"{place}: the tensors {odd} differ from {_MANIFEST} in sha256")
    return tensors


def _check_tensors(
    place: pathlib.Path, flat: dict[str, np.ndarray], tensors: dict[str, dict[str, Any]]
) -> None:
    if set(flat) != set(tensors):
        odd = sorted(set(flat) ^ set(tensors))
        raise base.InvalidWeights(f"{place}: {_TENSORS} and {_MANIFEST} disagree about {odd}")
    for path, array in flat.items():
        found = base.describe(array)
        if found != tensors[path]:
            wrong = [name for name in found if found[name] != tensors[path].get(name)]
            raise base.InvalidWeights(
                f"{place}: tensor {path} differs from {_MANIFEST} in {', '.join(wrong)}"
            )
        base.refuse_not_finite(place, path, array)
