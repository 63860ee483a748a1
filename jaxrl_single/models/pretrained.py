"""Weights that others have trained: a Hugging Face checkpoint or a GGUF file, tensor by tensor.

No jax: what serves or trains puts the arrays on its devices. Nothing is kept in memory here.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from jaxrl_single import param_tree
from jaxrl_single.models import config as config_lib
from jaxrl_single.models import gguf, gguf_tokenizer, hf_config, hf_families, hf_files, hf_names

TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
_TEMPLATES = "additional_chat_templates"
_PACKAGE = "package:"
_IGNORED = ("rotary_emb.inv_freq",)  # a buffer that old releases saved; it follows from rope_theta
_SHOWN = 5  # names in a message
_ROWS = 4096  # compared at a time

Index = tuple[slice, ...]


class Tensors(Protocol):
    """The tensors of a checkpoint by name; reading one leaves nothing in memory but the result."""

    path: pathlib.Path

    def names(self) -> set[str]:
        """Of all of them."""
        ...

    def read(
        self, name: str, shape: tuple[int, ...], index: tuple[Any, ...] = (...,)
    ) -> np.ndarray:
        """A part of a tensor, as it is stored.

        Raises:
          ValueError: it has another shape, or its kind of numbers is not known.
        """
        ...


class Pretrained:
    """An open checkpoint whose names are those of its model.

    Attributes:
      path: of its directory or file.
      description: its shape, context and stop tokens.
      is_critic: it has a value head in the place of the unembedding.
    """

    def __init__(
        self, tensors: Tensors, description: hf_config.Description, *, is_critic: bool = False
    ):
        """Checks the names.

        Raises:
          ValueError: tensors are missing or unknown; the message names them.
        """
        self.path = tensors.path
        self.description = description
        self.is_critic = is_critic
        self._tensors = tensors
        self._places = hf_names.places(self.config, critic=is_critic)
        self._names: dict[str, dict[tuple[int, ...], str]] = defaultdict(dict)
        for name, place in self._places.items():
            self._names[place.path][place.index] = name
        self._check_names()
        if self.config.tie_embeddings:
            self._check_tied()

    @property
    def where(self) -> str:
        """It in words."""
        return str(self.path)

    @property
    def config(self) -> config_lib.ModelConfig:
        """The shape of the model."""
        return self.description.model

    def leaf_shapes(self) -> dict[str, tuple[int, ...]]:
        """Path -> shape of all parameters, sorted by path."""
        return hf_names.leaf_shapes(self.config, critic=self.is_critic)

    def leaf(self, path: str, index: Index | None = None) -> np.ndarray:
        """One of our parameters, or a part of it; as much is read as is asked for.

        Args:
          path: such as "layers/attention/q_proj".
          index: a slice for each axis, without steps; None = all of it.

        Raises:
          ValueError: a number is not finite, as it is stored or in the dtype of the model.
        """
        shape = self.leaf_shapes()[path]
        index = tuple(slice(None) for _ in shape) if index is None else index
        ranges = [range(*part.indices(size)) for part, size in zip(index, shape, strict=True)]
        bounds = tuple(slice(found.start, found.stop) for found in ranges)
        dtype = hf_names.leaf_dtypes(self.config, critic=self.is_critic)[path]
        array = np.empty([len(found) for found in ranges], dtype)
        names = self._names[path]
        leading = len(next(iter(names)))
        for place in np.ndindex(*array.shape[:leading]):
            name = names[tuple(ranges[axis][number] for axis, number in enumerate(place))]
            array[place or ...] = self._read(name, bounds[leading:])
            refuse_not_finite(f"{self.path}: tensor {name}", array[place or ...])
        return array

    def params(self) -> dict[str, Any]:
        """All parameters as nested dict of numpy arrays."""
        return param_tree.unflatten({path: self.leaf(path) for path in self.leaf_shapes()})

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and array of each tensor as a checkpoint has them, one by one and in their order."""
        for name, place in self._places.items():
            array = self._tensors.read(name, place.shape)
            yield name, array.astype(place.dtype, copy=False)

    def write_text(self, directory: pathlib.Path) -> None:
        """Puts tokenizer, chat templates and generation_config.json there, as far as it has them.

        Raises:
          ValueError: the tokenizer of a GGUF file is of a kind that is not known.
          OSError: a file cannot be written.
        """
        write_text(self.path, directory)

    def _read(self, name: str, ours: Index) -> np.ndarray:
        """The part of a tensor that is `ours` of our leaf, in our layout."""
        place = self._places[name]
        array = self._tensors.read(name, place.shape, ours[::-1] if place.transposed else ours)
        return array.T if place.transposed else array

    def _check_names(self) -> None:
        wanted, found = set(self._places), self._tensors.names()
        allowed = wanted | ({hf_families.UNEMBEDDING.name} if self.config.tie_embeddings else set())
        extra = sorted(
            name
            for name in found - allowed
            if not name.endswith(_IGNORED) and not name.startswith(self.description.unread)
        )
        missing = sorted(wanted - found)
        problems = [
            f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{' ...' if names[_SHOWN:] else ''})"
            for what, names in (("missing", missing), ("unknown", extra))
            if names
        ]
        if problems:
            raise ValueError(
                f"{self.path}: the tensors are not those of config.json: {'; '.join(problems)}"
            )

    def _check_tied(self) -> None:
        name = hf_families.UNEMBEDDING.name
        if name not in self._tensors.names():
            return
        shape = (self.config.vocab_size, self.config.d_model)
        embedding = self._names["embedding/table"][()]
        for start in range(0, shape[0], _ROWS):
            rows = (slice(start, min(start + _ROWS, shape[0])), slice(0, shape[1]))
            parts = [self._tensors.read(each, shape, rows) for each in (embedding, name)]
            if not np.array_equal(*(part.astype(self.config.dtype) for part in parts)):
                raise ValueError(
                    f"{self.path}: tie_word_embeddings is true, and {name} differs from the "
                    "embedding; set tie_word_embeddings to false in config.json"
                )


def refuse_not_finite(what: str, array: np.ndarray) -> None:
    """Raises ValueError for the first number that is NaN or infinite."""
    found = param_tree.not_finite(array)
    if found is not None:
        raise ValueError(
            f"{what} holds a number that is not finite: {found} (of shape {list(array.shape)}, "
            f"{array.dtype}); such weights compute nothing, take a sound checkpoint"
        )


def locate(path: str | os.PathLike) -> pathlib.Path:
    """The place of a checkpoint.

    Args:
      path: a directory, a GGUF file, or "package:NAME/FILE", a file of an installed package.

    Raises:
      ValueError: there is nothing, or no such package, or it is the workdir of a run.
    """
    text = os.fspath(path)
    if text.startswith(_PACKAGE):
        name, _, inner = text.removeprefix(_PACKAGE).partition("/")
        spec = importlib.util.find_spec(name)  # without importing it
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(
                f"{text}: there is no package {name}; install it, "
                f"with pip install --no-deps {name.replace('_', '-')} if it is of PyPI"
            )
        found = pathlib.Path(spec.submodule_search_locations[0]) / inner
    else:
        found = pathlib.Path(text).expanduser()
    if not found.exists():
        raise ValueError(f"{found}: there is no such directory or file")
    if (found / "run.json").exists():
        raise ValueError(
            f"{found} is the workdir of a run; write its weights as a checkpoint first: "
            f"python -m jaxrl_single.run.convert --from={found} --to=DIR"
        )
    return found


def describe(path: str | os.PathLike, *, dtype: str | None = None) -> hf_config.Description:
    """Shape, context length and stop tokens of a checkpoint; no tensor is looked at.

    Args:
      path: as `locate` takes it.
      dtype: of parameters and activations, one of config.DTYPES; None = the checkpoint's own.

    Raises:
      ValueError: no checkpoint, or one that our model does not compute; the message says why.
      OSError: a file cannot be read.
    """
    found = locate(path)
    if found.is_dir():
        return hf_config.read(found, dtype=dtype)
    return _describe_gguf(gguf.File(found), dtype)


def open_checkpoint(path: str | os.PathLike, *, dtype: str | None = None) -> Pretrained:
    """Opens a checkpoint; see `describe` for arguments and errors."""
    found = locate(path)
    if found.is_dir():
        description = hf_config.read(found, dtype=dtype)
        is_critic = hf_config.is_critic(found)
        return Pretrained(hf_files.Files(found), description, is_critic=is_critic)
    file = gguf.File(found)
    return Pretrained(file, _describe_gguf(file, dtype))


def write_text(source: pathlib.Path, directory: pathlib.Path) -> None:
    """Puts what a checkpoint has of text into a directory; see `Pretrained.write_text`."""
    if source.is_dir():
        for name in TEXT_FILES:
            if (source / name).exists():
                shutil.copyfile(source / name, directory / name)
        if (source / _TEMPLATES).is_dir():
            shutil.copytree(source / _TEMPLATES, directory / _TEMPLATES, dirs_exist_ok=True)
        return
    parts = gguf_tokenizer.read(gguf.File(source))
    gguf_tokenizer.write(parts, directory)
    hf_config.write_stop_token_ids(directory, parts.stop_token_ids)


def _describe_gguf(file: gguf.File, dtype: str | None) -> hf_config.Description:
    model, context_length = hf_config.parse(file.path, file.config(), dtype=dtype)
    return hf_config.Description(model, context_length, gguf_tokenizer.stop_token_ids(file))
