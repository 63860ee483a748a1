"""The one place that decides between formulations for XLA:CPU and for accelerators."""

from __future__ import annotations

import jax


def on_cpu() -> bool:
    """Whether the program being traced is for CPU.

    The mesh in use decides, so that a program for TPU or GPU can be compiled on a machine without
    one; without a mesh, the default device does.
    """
    mesh_device = jax.sharding.get_abstract_mesh().abstract_device
    if mesh_device is not None:
        return mesh_device.platform == "cpu"
    default = jax.config.jax_default_device
    if default is None:
        return jax.default_backend() == "cpu"
    return (default if isinstance(default, str) else default.platform) == "cpu"


def separate(arrays: jax.Array | tuple[jax.Array, ...]):
    """On CPU, keeps XLA from fusing what makes the arrays into the dots that read them.

    XLA:CPU would compute such a fusion in a strided loop, several times slower than the dot;
    accelerators want the fusion.
    """
    return jax.lax.optimization_barrier(arrays) if on_cpu() else arrays
