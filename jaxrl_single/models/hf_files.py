"""Safetensors files of a checkpoint, one or several shards, tensor by tensor. No jax, no pickle."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes  # registers bfloat16 with numpy, which reading such tensors needs
import numpy as np
import safetensors

from jaxrl_single.models import hf_config, hf_names

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FLOATS = tuple(np.dtype(kind) for kind in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))
_CODES = {"bfloat16": "BF16", "float32": "F32"}
_ALIGNMENT = 8  # bytes, of the header


class Files:
    """The tensors of a directory, as `pretrained.Tensors`.

    Attributes:
      path: of the directory.
    """

    def __init__(self, directory: pathlib.Path):
        """Reads the names.

        Raises:
          ValueError: no safetensors, a shard is missing, or the index contradicts the shards.
          OSError: a file cannot be read.
        """
        self.path = directory
        self._places = locate(directory)

    def names(self) -> set[str]:
        """Of all tensors."""
        return set(self._places)

    def read(
        self, name: str, shape: tuple[int, ...], index: tuple[Any, ...] = (...,)
    ) -> np.ndarray:
        """A part of a tensor.

        Raises:
          ValueError: it has another shape, or holds no floating-point numbers.
        """
        path = self._places[name]
        # Opened for each tensor: the pages of an open file count as memory of this process.
        with _open(path) as file:
            stored = file.get_slice(name)
            found = tuple(stored.get_shape())
            if found != shape:
                raise ValueError(
                    f"{path}: {name} has shape {list(found)}, config.json asks for {list(shape)}"
                )
            array = stored[index] if shape else file.get_tensor(name)
        if array.dtype not in _FLOATS:
            raise ValueError(f"{path}: {name} is {array.dtype}; quantized checkpoints are not read")
        return array


def locate(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """Tensor name -> the file that holds it.

    A whole checkpoint goes before an index, which an earlier one of several files has left.

    Raises:
      ValueError: no safetensors, a shard is missing, or the index contradicts the shards.
      OSError: a file cannot be read.
    """
    single, index = directory / SINGLE, directory / INDEX
    if single.exists():
        return dict.fromkeys(_names(single), single)
    if index.exists():
        return _indexed(index)
    raise ValueError(
        f"{directory}: neither {SINGLE} nor {INDEX}; other formats are not read, "
        "convert them with save_pretrained of transformers"
    )


def write(
    directory: pathlib.Path,
    places: Mapping[str, hf_names.Place],
    tensors: Iterable[tuple[str, np.ndarray]],
    *,
    max_shard_bytes: int,
) -> None:
    """Writes tensors as they come; no more than one is in memory.

    Args:
      places: name -> shape and dtype of all tensors, in the order in which they come.
      tensors: name and array.
      max_shard_bytes: of a file; if one holds all there is no index.

    Raises:
      ValueError: another tensor comes than was announced.
    """
    shards = list(_shards(places, max_shard_bytes))
    count = len(shards)
    files = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    files = [SINGLE] if count == 1 else files
    coming = iter(tensors)
    for file, shard in zip(files, shards, strict=True):
        _write_shard(directory / file, shard, coming)
    if next(coming, None) is not None:
        raise ValueError(f"{directory}: more tensors than the {len(places)} of the model")
    if count > 1:
        weight_map = {n: file for file, shard in zip(files, shards, strict=True) for n in shard}
        index = {
            "metadata": {"total_size": sum(map(_bytes, places.values()))},
            "weight_map": dict(sorted(weight_map.items())),
        }
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _indexed(index: pathlib.Path) -> dict[str, pathlib.Path]:
    weight_map = hf_config.read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index}: expected an object weight_map from tensors to files")
    places = {}
    held: dict[str, set[str]] = {}
    for file in sorted(set(map(str, weight_map.values()))):
        path = index.parent / file
        if path.parent != index.parent or not path.exists():
            raise ValueError(f"{index}: names the file {file!r}, which is not beside it")
        held[file] = set(_names(path))
        places |= dict.fromkeys(held[file], path)
    for name, file in weight_map.items():
        if name not in held[str(file)]:
            raise ValueError(f"{index}: {name} is not in {file}, as the index says")
        places[name] = index.parent / file
    return places


def _names(path: pathlib.Path) -> list[str]:
    with _open(path) as file:
        return list(file.keys())


def _open(path: pathlib.Path) -> safetensors.safe_open:
    try:
        return safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: torn or no safetensors file ({error})") from None


def _bytes(place: hf_names.Place) -> int:
    return int(np.prod(place.shape)) * np.dtype(place.dtype).itemsize


def _shards(
    places: Mapping[str, hf_names.Place], max_bytes: int
) -> Iterator[dict[str, hf_names.Place]]:
    shard, size = {}, 0
    for name, place in places.items():
        new = _bytes(place)
        if shard and size + new > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = place
        size += new
    yield shard


def _write_shard(
    path: pathlib.Path,
    shard: Mapping[str, hf_names.Place],
    coming: Iterator[tuple[str, np.ndarray]],
) -> None:
    """The format: the header's length, the header as JSON, the tensors without gaps."""
    # transformers refuses a file without this entry.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, place in shard.items():
        begin, end = end, end + _bytes(place)
        header[name] = {
            "dtype": _CODES[place.dtype],
            "shape": list(place.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, place in shard.items():
            file.write(_contiguous(next(coming, ("nothing", None)), name, place))


def _contiguous(
    came: tuple[str, np.ndarray | None], name: str, place: hf_names.Place
) -> memoryview:
    found, array = came
    if found != name or array.shape != place.shape or array.dtype != np.dtype(place.dtype):
        expected = f"{name} ({place.dtype}, {list(place.shape)})"
        facts = "" if array is None else f" ({array.dtype}, {list(array.shape)})"
        raise ValueError(f"expected the tensor {expected}, got {found}{facts}")
    # As bytes, because bfloat16 has no buffer format of its own.
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
