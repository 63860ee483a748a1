"""Checkpoints in Hugging Face layout, in and out: the same weights here, in vLLM and transformers.

The families of hf_families.py: config.json, safetensors (with an index if there are several
files) and tokenizer files. Tensors pass one by one, so a checkpoint is in memory once. No jax:
what serves or trains puts the numpy arrays on its devices.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import hf_config, hf_families, hf_files

Params = Mapping[str, Any]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_IGNORED = ("rotary_emb.inv_freq",)  # a buffer that old releases saved; it follows from rope_theta
_SHOWN = 5  # names in a message


def describe(directory: str | os.PathLike, *, dtype: str | None = None) -> hf_config.Description:
    """Shape, context length and stop tokens of a checkpoint; see `hf_config.read`."""
    return hf_config.read(pathlib.Path(directory), dtype=dtype)


def load(
    directory: str | os.PathLike, *, dtype: str | None = None
) -> tuple[config_lib.ModelConfig, dict[str, Any]]:
    """Reads a checkpoint.

    Args:
      directory: holds config.json and *.safetensors.
      dtype: of the result, one of config.DTYPES; None = the checkpoint's own.

    Returns:
      The shape, and parameters for `api.build_policy(shape)` as numpy arrays.

    Raises:
      ValueError: an unknown family, a value that our model does not compute, tensors that are
        missing, unknown or of another shape; the message names them.
      OSError: a file cannot be read.
    """
    directory = pathlib.Path(directory)
    config = hf_config.read(directory, dtype=dtype).model
    places = hf_files.locate(directory)
    wanted = _wanted(config)
    _check_names(directory, set(wanted), set(places), tied=config.tie_embeddings)
    params = _empty(config)
    shapes = {name: shape for name, (_, shape, _) in wanted.items()}
    if config.tie_embeddings and hf_families.UNEMBEDDING.name in places:
        shapes[hf_families.UNEMBEDDING.name] = params["embedding/table"].shape
    extra = None
    for name, array in hf_files.read(places, shapes):
        if name not in wanted:
            extra = array
            continue
        tensor, _, index = wanted[name]
        params[tensor.path][index] = array.T if tensor.transposed else array
    _check_tied(directory, extra, params["embedding/table"])
    return config, _nested(params)


def save(
    directory: str | os.PathLike,
    config: config_lib.ModelConfig,
    params: Params,
    *,
    context_length: int,
    stop_token_ids: tuple[int, ...] = (),
    tokenizer: str | os.PathLike | None = None,
    max_shard_bytes: int = 4 * 10**9,
) -> None:
    """Writes a checkpoint: the whole directory, or none.

    Args:
      directory: must not exist yet.
      params: nested dict of arrays in host memory, of the config's shapes and dtype.
      context_length: written as max_position_embeddings, the most that vLLM serves.
      stop_token_ids: written as eos_token_id.
      tokenizer: a directory whose tokenizer files are copied, or a tokenizer.json.
      max_shard_bytes: of one file.

    Raises:
      ValueError: params do not fit the config; nothing was written.
      FileExistsError: the directory exists.
      OSError: it cannot be written.
    """
    directory = pathlib.Path(directory)
    if directory.exists():
        raise FileExistsError(f"{directory} exists already; choose another directory")
    flat = _checked(config, params)
    writing = directory.with_name(f".writing-{directory.name}-{os.getpid()}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    try:
        total_bytes = sum(leaf.nbytes for leaf in flat.values())
        hf_files.write(
            writing,
            _tensors(config, flat),
            total_bytes=total_bytes,
            max_shard_bytes=max_shard_bytes,
        )
        _write_facts(writing, hf_config.Description(config, context_length, stop_token_ids))
        if tokenizer is not None:
            _copy_tokenizer(pathlib.Path(tokenizer), writing)
        writing.rename(directory)
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def tensors(config: config_lib.ModelConfig, params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Name and array of each tensor as a checkpoint has them, one by one; for weight updates.

    Raises:
      ValueError: params do not fit the config.
    """
    return _tensors(config, _checked(config, params))


def _tensors(
    config: config_lib.ModelConfig, flat: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    for name, (tensor, _, index) in _wanted(config).items():
        array = flat[tensor.path][index]
        yield name, np.ascontiguousarray(array.T if tensor.transposed else array)


def _wanted(
    config: config_lib.ModelConfig,
) -> dict[str, tuple[hf_families.Tensor, tuple[int, ...], tuple[Any, ...]]]:
    """Their name -> (its leaf, their shape, its place in our leaf), sorted by name."""
    sizes = hf_families.dimensions(config)
    wanted = {}
    for tensor in hf_families.tensors_of(config):
        shape = tuple(sizes[axis] for axis in tensor.axes)
        for layer in range(config.num_layers) if "{layer}" in tensor.name else [None]:
            for expert in range(config.num_experts) if "{expert}" in tensor.name else [None]:
                name = tensor.name.format(layer=layer, expert=expert)
                index = tuple(number for number in (layer, expert) if number is not None)
                wanted[name] = (tensor, shape, index or (...,))
    return dict(sorted(wanted.items()))


def _our_shape(config: config_lib.ModelConfig, tensor: hf_families.Tensor) -> tuple[int, ...]:
    sizes = hf_families.dimensions(config)
    shape = tuple(sizes[axis] for axis in tensor.axes)
    leading = (config.num_layers,) if "{layer}" in tensor.name else ()
    leading += (config.num_experts,) if "{expert}" in tensor.name else ()
    return leading + (shape[::-1] if tensor.transposed else shape)


def _empty(config: config_lib.ModelConfig) -> dict[str, np.ndarray]:
    return {
        tensor.path: np.empty(_our_shape(config, tensor), config.dtype)
        for tensor in hf_families.tensors_of(config)
    }


def _check_names(directory: pathlib.Path, wanted: set[str], found: set[str], *, tied: bool) -> None:
    allowed = wanted | ({hf_families.UNEMBEDDING.name} if tied else set())
    extra = sorted(name for name in found - allowed if not name.endswith(_IGNORED))
    missing = sorted(wanted - found)
    problems = [
        f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{' ...' if names[_SHOWN:] else ''})"
        for what, names in (("missing", missing), ("unknown", extra))
        if names
    ]
    if problems:
        raise ValueError(
            f"{directory}: the tensors are not those of config.json: {'; '.join(problems)}"
        )


def _check_tied(
    directory: pathlib.Path, unembedding: np.ndarray | None, embedding: np.ndarray
) -> None:
    if unembedding is not None and not np.array_equal(
        unembedding.astype(embedding.dtype), embedding
    ):
        raise ValueError(
            f"{directory}: tie_word_embeddings is true, and {hf_families.UNEMBEDDING.name} "
            "differs from the embedding; set tie_word_embeddings to false in config.json"
        )


def _checked(config: config_lib.ModelConfig, params: Params) -> dict[str, np.ndarray]:
    """Our leaves by path, after their names, shapes and dtypes were found right."""
    flat = dict(_flat(params))
    expected = {
        tensor.path: (_our_shape(config, tensor), np.dtype(config.dtype))
        for tensor in hf_families.tensors_of(config)
    }
    found = {path: (leaf.shape, leaf.dtype) for path, leaf in flat.items()}
    odd = sorted(path for path in expected | found if expected.get(path) != found.get(path))
    if odd:
        path = odd[0]
        raise ValueError(
            f"these parameters do not fit the model config: {path} is {found.get(path)}, "
            f"expected {expected.get(path)} (shape, dtype; None = absent); "
            f"{len(odd)} tensors differ in all"
        )
    return flat


def _flat(params: Params, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield prefix + key, np.asarray(value)


def _nested(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return params


def _copy_tokenizer(source: pathlib.Path, target: pathlib.Path) -> None:
    if source.is_dir():
        for name in TOKENIZER_FILES:
            if (source / name).exists():
                shutil.copyfile(source / name, target / name)
    else:
        shutil.copyfile(source, target / "tokenizer.json")


def _write_facts(directory: pathlib.Path, description: hf_config.Description) -> None:
    written = hf_config.to_json(description)
    files = {"config.json": written}
    if description.stop_token_ids:
        files["generation_config.json"] = {"eos_token_id": written["eos_token_id"]}
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
