"""Which tensor of a checkpoint lies where in our parameters. No jax."""

from __future__ import annotations

import dataclasses

from jaxrl_single.models import config as config_lib
from jaxrl_single.models import hf_families


@dataclasses.dataclass(frozen=True)
class Place:
    """Of one tensor of a checkpoint.

    Attributes:
      path: of our leaf.
      index: into the leading axes of our leaf: none, a layer, or a layer and an expert.
      shape: of their tensor.
      transposed: ours is the transpose of theirs.
    """

    path: str
    index: tuple[int, ...]
    shape: tuple[int, ...]
    transposed: bool


def places(config: config_lib.ModelConfig, *, critic: bool = False) -> dict[str, Place]:
    """Their name -> where it lies, of all tensors of a policy or critic, sorted by name."""
    sizes = hf_families.dimensions(config)
    found = {}
    for tensor in _tensors(config, critic):
        shape = tuple(sizes[axis] for axis in tensor.axes)
        for layer in range(config.num_layers) if "{layer}" in tensor.name else [None]:
            for expert in range(config.num_experts) if "{expert}" in tensor.name else [None]:
                name = tensor.name.format(layer=layer, expert=expert)
                index = tuple(number for number in (layer, expert) if number is not None)
                found[name] = Place(tensor.path, index, shape, tensor.transposed)
    return dict(sorted(found.items()))


def leaf_shapes(
    config: config_lib.ModelConfig, *, critic: bool = False
) -> dict[str, tuple[int, ...]]:
    """Path -> shape of all our leaves, sorted by path."""
    sizes = hf_families.dimensions(config)
    found = {}
    for tensor in _tensors(config, critic):
        shape = tuple(sizes[axis] for axis in tensor.axes)
        leading = (config.num_layers,) if "{layer}" in tensor.name else ()
        leading += (config.num_experts,) if "{expert}" in tensor.name else ()
        found[tensor.path] = leading + (shape[::-1] if tensor.transposed else shape)
    return dict(sorted(found.items()))


def _tensors(config: config_lib.ModelConfig, critic: bool) -> tuple[hf_families.Tensor, ...]:
    found = hf_families.tensors_of(config)
    if not critic:
        return found
    decoder = tuple(tensor for tensor in found if tensor is not hf_families.UNEMBEDDING)
    return (*decoder, *hf_families.VALUE_HEAD)
