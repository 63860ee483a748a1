"""Safetensors files of a checkpoint, one or several shards, tensor by tensor. No jax, no pickle."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Iterator

import ml_dtypes  # registers bfloat16 with numpy, which reading such tensors needs
import numpy as np
import safetensors
import safetensors.numpy

from jaxrl_single.models import hf_config

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FLOATS = tuple(np.dtype(kind) for kind in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))


def locate(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """Tensor name -> the file that holds it.

    Raises:
      ValueError: no safetensors, a shard is missing, or the index contradicts the shards.
      OSError: a file cannot be read.
    """
    index = directory / INDEX
    if not index.exists():
        single = directory / SINGLE
        if not single.exists():
            raise ValueError(
                f"{directory}: neither {SINGLE} nor {INDEX}; other formats are not read, "
                "convert them with save_pretrained of transformers"
            )
        return dict.fromkeys(_names(single), single)
    return _indexed(index)


def shape_of(file: safetensors.safe_open, name: str) -> tuple[int, ...]:
    """Of a tensor, without reading it."""
    return tuple(file.get_slice(name).get_shape())


def read(
    places: dict[str, pathlib.Path],
    expected: dict[str, tuple[int, ...]],
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and array of each tensor of `expected`, file by file.

    Args:
      places: as `locate` gives them.
      expected: name -> shape.

    Raises:
      ValueError: another shape, or no floating-point tensor.
    """
    for path in sorted(set(places.values())):
        with _open(path) as file:
            for name in file.keys():  # noqa: SIM118 (the file is no dict)
                if name not in expected:
                    continue
                shape = shape_of(file, name)
                if shape != expected[name]:
                    raise ValueError(
                        f"{path}: {name} has shape {list(shape)}, "
                        f"config.json asks for {list(expected[name])}"
                    )
                array = file.get_tensor(name)
                if array.dtype not in _FLOATS:
                    raise ValueError(
                        f"{path}: {name} is {array.dtype}; quantized checkpoints are not read"
                    )
                yield name, array


def write(
    directory: pathlib.Path,
    tensors: Iterable[tuple[str, np.ndarray]],
    *,
    total_bytes: int,
    max_shard_bytes: int,
) -> None:
    """Writes tensors in their order; never more than one shard is in memory.

    Args:
      total_bytes: of all tensors; if one shard holds them there is no index.
    """
    if total_bytes <= max_shard_bytes:
        _write_shard(directory / SINGLE, dict(tensors))
        return
    shards, weight_map = 0, {}
    for shard in _shards(tensors, max_shard_bytes):
        shards += 1
        _write_shard(directory / f"shard-{shards}", shard)
        weight_map |= dict.fromkeys(shard, shards)
    files = {n: f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)}
    for number, name in files.items():
        (directory / f"shard-{number}").rename(directory / name)
    index = {
        "metadata": {"total_size": total_bytes},
        "weight_map": {name: files[number] for name, number in sorted(weight_map.items())},
    }
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _indexed(index: pathlib.Path) -> dict[str, pathlib.Path]:
    weight_map = hf_config.read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index}: expected an object weight_map from tensors to files")
    places = {}
    for file in sorted(set(map(str, weight_map.values()))):
        path = index.parent / file
        if path.parent != index.parent or not path.exists():
            raise ValueError(f"{index}: names the file {file!r}, which is not beside it")
        places |= dict.fromkeys(_names(path), path)
    for name, file in weight_map.items():
        if name not in places or places[name].name != file:
            raise ValueError(f"{index}: {name} is not in {file}, as the index says")
    return places


def _names(path: pathlib.Path) -> list[str]:
    with _open(path) as file:
        return list(file.keys())


def _open(path: pathlib.Path) -> safetensors.safe_open:
    try:
        return safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: torn or no safetensors file ({error})") from None


def _shards(
    tensors: Iterable[tuple[str, np.ndarray]], max_bytes: int
) -> Iterator[dict[str, np.ndarray]]:
    shard, size = {}, 0
    for name, array in tensors:
        if shard and size + array.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = array
        size += array.nbytes
    yield shard


def _write_shard(path: pathlib.Path, shard: dict[str, np.ndarray]) -> None:
    # transformers refuses a file without this entry.
    safetensors.numpy.save_file(shard, path, metadata={"format": "pt"})
