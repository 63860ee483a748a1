"""Checkpoints in Hugging Face layout: the same weights here, in vLLM and in transformers.

The families of hf_families.py: config.json, safetensors (with an index if there are several files)
and tokenizer files. Tensors pass one by one, so a model is in memory once, or not at all where they
come from a file. No jax: what serves or trains puts the numpy arrays on its devices.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl_single import atomic, param_tree
from jaxrl_single.models import config as config_lib
from jaxrl_single.models import hf_config, hf_files, hf_names, pretrained

MAX_SHARD_BYTES = 4 * 10**9
Params = param_tree.Params


def describe(path: str | os.PathLike, *, dtype: str | None = None) -> hf_config.Description:
    """Shape, context length and stop tokens of a checkpoint; see `pretrained.describe`."""
    return pretrained.describe(path, dtype=dtype)


def load(
    path: str | os.PathLike, *, dtype: str | None = None
) -> tuple[config_lib.ModelConfig, dict[str, Any]]:
    """Reads a checkpoint.

    Args:
      path: a directory in Hugging Face layout, or a GGUF file.
      dtype: of the result, one of config.DTYPES; None = the checkpoint's own.

    Returns:
      The shape, and parameters for `api.build_policy(shape)` as numpy arrays; a critic's are for
      `api.build_critic(shape)`.

    Raises:
      ValueError: an unknown family, a value that our model does not compute, tensors that are
        missing, unknown or of another shape; the message names them.
      OSError: a file cannot be read.
    """
    checkpoint = pretrained.open_checkpoint(path, dtype=dtype)
    return checkpoint.config, checkpoint.params()


def save(
    directory: str | os.PathLike,
    config: config_lib.ModelConfig,
    params: Params,
    *,
    context_length: int,
    stop_token_ids: tuple[int, ...] = (),
    tokenizer: str | os.PathLike | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes a checkpoint: the whole directory, or none.

    Args:
      directory: must not exist yet.
      params: nested dict of arrays, of the config's shapes and dtype, in host memory or not.
      context_length: written as max_position_embeddings, the most that vLLM serves.
      stop_token_ids: written as eos_token_id.
      tokenizer: a directory whose tokenizer files are copied, or a tokenizer.json.
      max_shard_bytes: of one file.

    Raises:
      ValueError: params do not fit the config; nothing was written.
      FileExistsError: the directory exists.
      OSError: it cannot be written.
    """
    # Parts of an array on devices would be cut out there, each by a program of its own.
    arrays = {path: np.asarray(leaf) for path, leaf in param_tree.flatten(params).items()}
    write(
        directory,
        hf_config.Description(config, context_length, stop_token_ids),
        tensors(config, param_tree.unflatten(arrays)),
        write_text=lambda writing: _copy_text(tokenizer, writing),
        max_shard_bytes=max_shard_bytes,
    )


def write(
    directory: str | os.PathLike,
    description: hf_config.Description,
    found: Iterable[tuple[str, np.ndarray]],
    *,
    write_text: Callable[[pathlib.Path], None],
    is_critic: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes a checkpoint: the whole directory, or none. One tensor is in memory at a time.

    What an earlier process that was killed left of it is removed.

    Args:
      directory: must not exist yet.
      description: what config.json says.
      found: name and array of each tensor, in the order of `hf_names.places`.
      write_text: puts the tokenizer into a directory.
      is_critic: with a value head in the place of the unembedding.
      max_shard_bytes: of one file.

    Raises:
      FileExistsError: the directory exists.
      ValueError, OSError: a tensor is not what it should be (its numbers are finite, for one), or
        cannot be read or written.
    """
    directory = pathlib.Path(directory)
    if directory.exists():
        raise FileExistsError(f"{directory} exists already; choose another directory")
    places = hf_names.places(description.model, critic=is_critic)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(directory) as writing:
        writing.mkdir()
        hf_files.write(writing, places, _finite(found), max_shard_bytes=max_shard_bytes)
        write_text(writing)
        hf_config.write(writing, description, is_critic=is_critic)


def _finite(found: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    for name, array in found:
        pretrained.refuse_not_finite(f"tensor {name}", array)
        yield name, array


def tensors(
    config: config_lib.ModelConfig, params: Params, *, is_critic: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and array of each tensor as a checkpoint has them, one by one and in their order.

    Args:
      params: nested dict; leaves are arrays, or anything with a shape, a dtype and parts by index.

    Raises:
      ValueError: params do not fit the config; before the first tensor.
    """
    flat = _checked(config, params, is_critic)

    def walk() -> Iterator[tuple[str, np.ndarray]]:
        for name, place in hf_names.places(config, critic=is_critic).items():
            array = np.asarray(flat[place.path][place.index or ...])
            yield name, array.T if place.transposed else array

    return walk()


def _checked(
    config: config_lib.ModelConfig, params: Params, is_critic: bool
) -> Mapping[str, np.ndarray]:
    """Our leaves by path, after their names, shapes and dtypes were found right."""
    flat = param_tree.flatten(params)
    shapes = hf_names.leaf_shapes(config, critic=is_critic)
    dtypes = hf_names.leaf_dtypes(config, critic=is_critic)
    expected = {path: (shape, np.dtype(dtypes[path])) for path, shape in shapes.items()}
    found = {path: (tuple(leaf.shape), np.dtype(leaf.dtype)) for path, leaf in flat.items()}
    odd = sorted(path for path in expected | found if expected.get(path) != found.get(path))
    if odd:
        path = odd[0]
        raise ValueError(
            f"these parameters do not fit the model config: {path} is {found.get(path)}, "
            f"expected {expected.get(path)} (shape, dtype; None = absent); "
            f"{len(odd)} tensors differ in all"
        )
    return flat


def _copy_text(tokenizer: str | os.PathLike | None, directory: pathlib.Path) -> None:
    if tokenizer is None:
        return
    source = pathlib.Path(tokenizer)
    if source.is_dir():
        pretrained.write_text(source, directory)
    else:
        shutil.copyfile(source, directory / "tokenizer.json")
