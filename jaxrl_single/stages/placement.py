"""Where the trainer's arrays lie: on one device, or split over a mesh."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import ml_collections

from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.trainer import mesh as mesh_lib


@dataclasses.dataclass(frozen=True)
class Placement:
    """Puts what a step reads where the step leaves it, so that its second call compiles nothing.

    Attributes:
      state: puts a ModelState or TrainState.
      parameters: shapes of parameters -> their shardings.
      batch: puts a TokenBatch.
      shardings: state -> its shardings; None on one device.
      mesh: None on one device.
    """

    state: Callable[[Any], Any]
    parameters: Callable[[api.Params], api.Params]
    batch: Callable[[token_batch.TokenBatch], token_batch.TokenBatch]
    shardings: Callable[[Any], Any]
    mesh: jax.sharding.Mesh | None

    def put(self, params: api.Params) -> api.Params:
        """Puts parameters; of a leaf in host memory no device gets more than its part."""
        return jax.device_put(params, self.parameters(params))


def make(config: ml_collections.ConfigDict) -> Placement:
    """The mesh of `config.trainer.mesh`.

    Raises:
      ValueError: there are not as many devices as its sizes say.
    """
    sizes = config.trainer.mesh.to_dict()
    if math.prod(sizes.values()) == 1:
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return Placement(
            state=lambda state: jax.device_put(state, device),
            parameters=lambda params: jax.tree.map(lambda _: device, params),
            batch=lambda batch: jax.device_put(batch, device),
            shardings=lambda state: None,
            mesh=None,
        )
    mesh = mesh_lib.make_mesh(sizes)
    return Placement(
        state=functools.partial(mesh_lib.put_state, mesh=mesh),
        parameters=functools.partial(mesh_lib.parameter_shardings, mesh=mesh),
        batch=functools.partial(mesh_lib.put_batch, mesh=mesh),
        shardings=functools.partial(mesh_lib.state_shardings, mesh=mesh),
        mesh=mesh,
    )
