"""Which tensor of a checkpoint lies where in our parameters. No jax."""

from __future__ import annotations

import dataclasses
import itertools

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import hf_families


@dataclasses.dataclass(frozen=True)
class Place:
    """Of one tensor of a checkpoint.

    Attributes:
      path: of our leaf.
      index: into the leading axes of our leaf: none, a layer, or a layer and an expert.
      shape: of their tensor.
      dtype: of both.
      transposed: ours is the transpose of theirs.
    """

    path: str
    index: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    transposed: bool


def places(config: config_lib.ModelConfig, *, critic: bool = False) -> dict[str, Place]:
    """Their name -> where it lies, of all tensors of a policy or critic.

    In the order in which a file has them: wide numbers first, so that each is aligned, then by
    name.
    """
    sizes = hf_families.dimensions(config)
    found = {}
    for tensor in _tensors(config, critic):
        shape = tuple(sizes[axis] for axis in tensor.axes)
        dtype = tensor.dtype or config.dtype
        layers = hf_families.layer_numbers(config, tensor)
        for index in itertools.product(*map(range, _leading(config, tensor))):
            layer, expert = (layers[index[0]], index[-1]) if index else (None, None)
            name = tensor.name.format(layer=layer, expert=expert)
            found[name] = Place(tensor.path, index, shape, dtype, tensor.transposed)
    order = {dtype: number for number, dtype in enumerate(config_lib.DTYPES)}
    return dict(sorted(found.items(), key=lambda item: (order[item[1].dtype], item[0])))


def leaf_shapes(
    config: config_lib.ModelConfig, *, critic: bool = False
) -> dict[str, tuple[int, ...]]:
    """Path -> shape of all our leaves, sorted by path."""
    sizes = hf_families.dimensions(config)
    found = {}
    for tensor in _tensors(config, critic):
        shape = tuple(sizes[axis] for axis in tensor.axes)
        ours = shape[::-1] if tensor.transposed else shape
        found[tensor.path] = _leading(config, tensor) + ours
    return dict(sorted(found.items()))


def leaf_dtypes(config: config_lib.ModelConfig, *, critic: bool = False) -> dict[str, str]:
    """Path -> dtype of all our leaves, sorted by path."""
    found = {t.path: t.dtype or config.dtype for t in _tensors(config, critic)}
    return dict(sorted(found.items()))


def _leading(config: config_lib.ModelConfig, tensor: hf_families.Tensor) -> tuple[int, ...]:
    """Axes of our leaf before those of a tensor: layers, experts."""
    layers = hf_families.layer_numbers(config, tensor)
    leading = () if layers is None else (len(layers),)
    return (*leading, config.num_experts) if "{expert}" in tensor.name else leading


def _tensors(config: config_lib.ModelConfig, critic: bool) -> tuple[hf_families.Tensor, ...]:
    found = hf_families.tensors_of(config)
    if not critic:
        return found
    decoder = tuple(tensor for tensor in found if tensor is not hf_families.UNEMBEDDING)
    return (*decoder, *hf_families.VALUE_HEAD)
