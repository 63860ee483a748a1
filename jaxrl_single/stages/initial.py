"""The parameters that a run starts from, each placed where training has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_collections

from jaxrl_single import param_tree
from jaxrl_single.models import api, hf_names, pretrained

Shardings = Callable[[api.Params], api.Params]  # of a tree of shapes


def policy_params(
    config: ml_collections.ConfigDict, policy: api.Policy, shardings: Shardings
) -> api.Params:
    """The weights of `config.model.path`, or random ones.

    Raises:
      ValueError: the checkpoint's tensors are not those of its model; the message names them.
      OSError: it cannot be read.
    """
    if not config.model.path:
        return random_params(policy.init, jax.random.key(config.seed), shardings)
    checkpoint = pretrained.open_checkpoint(config.model.path, dtype=config.model.dtype)
    if checkpoint.is_critic:
        raise ValueError(f"{checkpoint.path} is a critic; a run starts from a policy")
    return read(checkpoint, shardings)


def random_params(
    init: Callable[[jax.Array], api.Params], key: jax.Array, shardings: Shardings
) -> api.Params:
    """What `init` draws; no device holds more than its part."""
    return jax.jit(init, out_shardings=shardings(jax.eval_shape(init, key)))(key)


def abstract_params(init: Callable[[jax.Array], api.Params], shardings: Shardings) -> api.Params:
    """Shapes with the places of what `init` makes, to restore a checkpoint onto."""
    shapes = jax.eval_shape(init, jax.random.key(0))
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        shardings(shapes),
    )


def read(checkpoint: pretrained.Pretrained, shardings: Shardings) -> api.Params:
    """Reads a policy onto the devices, one parameter after the other.

    A process reads what its own devices hold, so the model may be larger than its memory.
    """
    dtypes = hf_names.leaf_dtypes(checkpoint.config)
    shapes = param_tree.unflatten(
        {
            path: jax.ShapeDtypeStruct(shape, dtypes[path])
            for path, shape in checkpoint.leaf_shapes().items()
        }
    )
    places = param_tree.flatten(shardings(shapes))
    return param_tree.unflatten(
        {path: _leaf(checkpoint, path, places[path]) for path in param_tree.flatten(shapes)}
    )


def _leaf(checkpoint: pretrained.Pretrained, path: str, place: jax.sharding.Sharding) -> jax.Array:
    parts: dict[Any, Any] = {}  # devices with the same part share it

    def part(index: pretrained.Index) -> Any:
        bounds = tuple((one.start, one.stop) for one in index)
        if bounds not in parts:
            parts[bounds] = checkpoint.leaf(path, index)
        return parts[bounds]

    return jax.make_array_from_callback(checkpoint.leaf_shapes()[path], place, part)
