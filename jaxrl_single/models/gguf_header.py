"""The header of a GGUF file: its metadata, and where its tensors are. No jax.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The package `gguf` reads it
too, but makes an array of each text, which takes seconds for the vocabulary of a model.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import pathlib
import struct
from typing import Any

import numpy as np

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # bytes, where the metadata say nothing
_NUMBERS = ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", None, None, "<u8", "<i8", "<f8")
_TEXT, _LIST, _FLOAT32 = 8, 9, 6


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Where a tensor is.

    Attributes:
      shape: rows first, as numpy has it; a row is stored without gaps.
      kind: number of its ggml type.
      offset: of its first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def size(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Header:
    """What comes before the tensors.

    Attributes:
      values: a number, a text, or a list of either.
      tensors: in the order of the file.
    """

    values: dict[str, Any]
    tensors: tuple[Tensor, ...]


def read(path: pathlib.Path) -> Header:
    """Reads a header.

    Raises:
      ValueError: the file is torn, or no GGUF of a version that is known.
      OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError(f"{path}: not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Reader(content).header()
            except (struct.error, ValueError, IndexError) as error:
                raise ValueError(f"{path}: torn or no GGUF file ({error})") from error


class _Reader:
    """Reads a header from front to back."""

    def __init__(self, content: mmap.mmap):
        self._content = content
        self._place = 4

    def header(self) -> Header:
        version = self._number(4)
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, known are {_VERSIONS}")
        num_tensors, num_values = self._number(10), self._number(10)
        values = {}
        for _ in range(num_values):
            key = self._text()
            values[key] = self._value(self._number(4))
        found = [self._tensor() for _ in range(num_tensors)]
        alignment = values.get("general.alignment", _ALIGNMENT)
        start = -(-self._place // alignment) * alignment
        tensors = tuple(dataclasses.replace(one, offset=start + one.offset) for one in found)
        if any(tensor.offset >= len(self._content) for tensor in tensors):
            raise ValueError("the file ends before its tensors")
        return Header(values, tensors)

    def _tensor(self) -> Tensor:
        name = self._text()
        shape = tuple(self._number(10) for _ in range(self._number(4)))
        return Tensor(name, shape[::-1], kind=self._number(4), offset=self._number(10))

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _LIST:
            kind, count = self._number(4), self._number(10)
            if kind in (_TEXT, _LIST):
                return [self._value(kind) for _ in range(count)]
            return self._numbers(kind, count)
        return self._numbers(kind, 1)[0]

    def _text(self) -> str:
        size = self._number(10)
        text = self._content[self._place : self._place + size]
        if len(text) < size:
            raise ValueError("the file ends within a text")
        self._place += size
        return text.decode("utf-8")

    def _number(self, kind: int) -> int:
        form = "<I" if kind == 4 else "<Q"
        (number,) = struct.unpack_from(form, self._content, self._place)
        self._place += struct.calcsize(form)
        return number

    def _numbers(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        data = self._content[self._place : self._place + count * dtype.itemsize]
        found = np.frombuffer(data, dtype, count)
        self._place += len(data)
        if kind == _FLOAT32:
            return [float(str(number)) for number in found]  # 1e-5, not the float64 next to it
        return found.tolist()
