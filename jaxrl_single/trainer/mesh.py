"""Device mesh, and where each array of a step lies on it.

Axes: `data` and `fsdp` both split the rows of a batch; `fsdp` also splits parameters and optimiser
slots; `tensor` splits heads and hidden widths, `expert` the experts, `context` the tokens of long
rows. Axes have AxisType.Auto: programs are written for one device and XLA inserts the transfers.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxrl_single.data import token_batch
from jaxrl_single.trainer import optim
from jaxrl_single.trainer import state as state_lib

AXES = ("data", "fsdp", "tensor", "expert", "context")
ROW_AXES = ("data", "fsdp")

Rules = Sequence[tuple[str, P]]

# Ordered (regex on the whole path, spec); leaves under `(dense_)layers` have a leading layer axis.
PARAMETER_RULES: Rules = (
    ("(embedding|unembedding)/table", P("tensor", "fsdp")),
    ("(dense_)?layers/attention/(q|k|v)_proj", P(None, "fsdp", "tensor")),
    ("(dense_)?layers/attention/(q|k|v)_bias", P(None, "tensor")),
    ("(dense_)?layers/attention/o_proj", P(None, "tensor", "fsdp")),
    ("(dense_layers/mlp|layers/(mlp|shared_experts))/(gate|up)", P(None, "fsdp", "tensor")),
    ("(dense_layers/mlp|layers/(mlp|shared_experts))/down", P(None, "tensor", "fsdp")),
    ("layers/experts/(gate|up)", P(None, "expert", "fsdp", "tensor")),
    ("layers/experts/down", P(None, "expert", "tensor", "fsdp")),
    ("layers/router/kernel", P(None, "fsdp", None)),
    ("layers/router/bias", P()),
    ("value_head/kernel", P("fsdp", None)),
    ("value_head/bias", P()),
    (".*/scale", P()),
)


def make_mesh(sizes: Mapping[str, int], *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh with all of AXES; axes that are not named have size 1.

    Args:
      sizes: axis -> number of devices along it; the product must be the number of devices.
      devices: default: as many of `jax.devices()` as the product says.

    Raises:
      ValueError: unknown axis, a size below 1, or another number of devices.
    """
    if unknown := set(sizes) - set(AXES):
        raise ValueError(f"trainer.mesh has the axes {sorted(unknown)}; allowed are {AXES}")
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    if min(shape) < 1:
        raise ValueError(f"trainer.mesh sizes {dict(sizes)} must be at least 1")
    needed = math.prod(shape)
    if devices is None:
        devices = jax.devices()[:needed]
    if len(devices) != needed:
        raise ValueError(
            f"trainer.mesh {dict(sizes)} needs {needed} devices, there are {len(devices)}; change "
            "the axis sizes so that their product is the number of devices"
        )
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def parameter_shardings(
    params: optim.Params, mesh: Mesh, rules: Rules = PARAMETER_RULES
) -> optim.Params:
    """The tree of NamedShardings of a tree of parameters (arrays or shapes).

    A dimension that the axes of its spec do not divide evenly is replicated instead; `table` shows
    where that happened.

    Raises:
      ValueError: parameters that no rule matches, or a spec longer than the parameter's shape.
    """
    unmatched = []

    def choose(path, leaf):
        name = optim.path_name(path)
        for pattern, spec in rules:
            if re.fullmatch(pattern, name):
                return NamedSharding(mesh, _divisible(spec, leaf.shape, mesh, name))
        unmatched.append(name)
        return NamedSharding(mesh, P())

    shardings = jax.tree_util.tree_map_with_path(choose, params)
    if unmatched:
        raise ValueError(
            f"no sharding rule matches the parameters {unmatched}; add one to PARAMETER_RULES in "
            "jaxrl_single/trainer/mesh.py"
        )
    return shardings


def state_shardings(state: Any, mesh: Mesh, rules: Rules = PARAMETER_RULES) -> Any:
    """Shardings of a TrainState or ModelState: optimiser slots lie where their parameter lies."""

    def of_slots(opt_state, params):
        """Slots repeat the tree of trained parameters, so the end of their path names one."""
        by_name = {
            optim.path_name(path): sharding
            for path, sharding in jax.tree_util.tree_leaves_with_path(
                parameter_shardings(params, mesh, rules)
            )
        }

        def choose(path, _):
            name = optim.path_name(path)
            fits = [end for end in by_name if name == end or name.endswith("/" + end)]
            return by_name[max(fits, key=len)] if fits else NamedSharding(mesh, P())

        return jax.tree_util.tree_map_with_path(choose, opt_state)

    def replicated(tree):
        return jax.tree.map(lambda _: NamedSharding(mesh, P()), tree)

    if isinstance(state, state_lib.ModelState):
        return state_lib.ModelState(
            params=parameter_shardings(state.params, mesh, rules),
            opt_state=of_slots(state.opt_state, state.params),
            step=replicated(state.step),
        )
    return dataclasses.replace(
        replicated(state),
        policy_params=parameter_shardings(state.policy_params, mesh, rules),
        policy_opt=of_slots(state.policy_opt, state.policy_params),
        critic_params=parameter_shardings(state.critic_params, mesh, rules),
        critic_opt=of_slots(state.critic_opt, state.critic_params),
        reference_params=parameter_shardings(state.reference_params, mesh, rules),
    )


def put_state(state: Any, mesh: Mesh, rules: Rules = PARAMETER_RULES) -> Any:
    """A copy of a TrainState or ModelState on the mesh. A copy, because steps donate it."""
    # device_put may let a replicated leaf share the buffer that lies on its device already.
    copied = jax.tree.map(jnp.copy, state)
    return jax.device_put(copied, state_shardings(state, mesh, rules))


def put_batch(batch: token_batch.TokenBatch, mesh: Mesh) -> token_batch.TokenBatch:
    """Puts a batch on the devices: rows split over ROW_AXES, facts of trajectories everywhere.

    Raises:
      ValueError: the rows of a micro-batch cannot be split evenly.
    """
    rows, parts = batch.tokens.shape[1], math.prod(mesh.shape[axis] for axis in ROW_AXES)
    if rows % parts:
        raise ValueError(
            f"batch.rows_per_micro_batch={rows} is not a multiple of the {parts} devices of the "
            f"mesh axes {ROW_AXES}; change it or trainer.mesh"
        )
    names = set(token_batch.token_fields(batch))
    placed = {
        field.name: jax.device_put(
            value, NamedSharding(mesh, P(None, ROW_AXES) if field.name in names else P())
        )
        for field in dataclasses.fields(batch)
        if (value := getattr(batch, field.name)) is not None
    }
    return dataclasses.replace(batch, **placed)


def table(params: optim.Params, mesh: Mesh, rules: Rules = PARAMETER_RULES) -> str:
    """One line per parameter: spec, shape, path; for the log."""
    shardings = jax.tree.leaves(parameter_shardings(params, mesh, rules))
    flat = jax.tree_util.tree_leaves_with_path(params)
    return "\n".join(
        f"{sharding.spec!s:<48} {leaf.shape!s:<20} {optim.path_name(path)}"
        for (path, leaf), sharding in zip(flat, shardings, strict=True)
    )


def _divisible(spec: P, shape: tuple[int, ...], mesh: Mesh, name: str) -> P:
    """The spec without the axes that do not divide their dimension, or that have size 1."""
    if len(spec) > len(shape):
        raise ValueError(f"sharding {spec} of {name} has more entries than its shape {shape}")
    kept = [
        axis if axis is not None and mesh.shape[axis] > 1 and size % mesh.shape[axis] == 0 else None
        for axis, size in zip(spec, shape, strict=False)
    ]
    return P(*kept)
