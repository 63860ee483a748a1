"""Who gets which accelerator: environment variables, set before a child imports jax.

CPU: all processes share the cores. Several GPUs or TPU chips: `trainer.devices` and
`sampler.devices` name the chips of each side; several samplers deal theirs out. One GPU: all share
it, each with its memory fraction. One TPU chip can be held by one process only: the samplers go to
the CPU when their devices are "cpu", else the run falls back to `sync`.
"""

import dataclasses
import glob
import os
from collections.abc import Sequence

VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}


class DeviceError(ValueError):
    """The requested split of devices is impossible; the message says what to change."""


@dataclasses.dataclass(frozen=True)
class DevicePlan:
    """What `plan` decided.

    Attributes:
      mode: "local", or "sync" when two processes can't share what there is.
      trainer_env: variables to add to the environment of the trainer.
      sampler_envs: the same for each sampler.
      message: one line for people.
    """

    mode: str
    trainer_env: dict[str, str]
    sampler_envs: tuple[dict[str, str], ...]
    message: str


def detect() -> tuple[str, tuple[str, ...]]:
    """(platform, its chips as VISIBLE names them) without importing jax.

    JAX_PLATFORMS=cpu wins over what is plugged in, and so do the variables of VISIBLE, which a
    cluster's scheduler may have set.
    """
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return "cpu", ("0",)
    plugged = {
        "gpu": glob.glob("/dev/nvidia[0-9]*"),
        "tpu": glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"),
    }
    for platform, found in plugged.items():
        visible = os.environ.get(VISIBLE[platform])
        chips = map(str, range(len(found))) if visible is None else visible.split(",")
        usable = tuple(chip.strip() for chip in chips if chip.strip() not in ("", "-1"))
        if found and usable:
            return platform, usable
    return "cpu", ("0",)


def plan(
    mode: str,
    platform: str,
    chips: Sequence[str],
    *,
    trainer_devices: str,
    sampler_devices: str,
    trainer_memory: float,
    sampler_memory: float,
    num_samplers: int = 1,
) -> DevicePlan:
    """Splits the chips of a platform between trainer and samplers.

    Args:
      mode: of the config, "local" or "sync".
      chips: names of those that may be used.
      trainer_memory, sampler_memory: fractions of one GPU that is shared; all samplers together.
      num_samplers: processes of this run; 0 = they are elsewhere, and the trainer takes all.

    Raises:
      DeviceError: chips named twice, chips that don't exist, only one side named, or fewer chips
        than samplers.
    """
    nothing = ({},) * num_samplers
    if mode == "sync" or platform == "cpu":
        where = "CPU" if platform == "cpu" else f"{platform.upper()}, one process"
        return DevicePlan(mode, {}, nothing, f"devices: {where}")
    if num_samplers == 0:
        message = f"devices: trainer on {len(chips)} {platform.upper()}, samplers elsewhere"
        return DevicePlan(mode, {}, (), message)
    if sampler_devices == "cpu":
        message = f"devices: trainer on {len(chips)} {platform.upper()}, sampler on CPU"
        return DevicePlan(mode, {}, ({"JAX_PLATFORMS": "cpu"},) * num_samplers, message)
    if len(chips) == 1:
        return _share_one(platform, trainer_memory, sampler_memory, num_samplers)
    trainer, sampler = _split(chips, trainer_devices, sampler_devices)
    variable = VISIBLE[platform]
    return DevicePlan(
        mode,
        {variable: trainer},
        tuple({variable: own} for own in _deal(sampler.split(","), num_samplers)),
        f"devices: {platform.upper()} {trainer} for the trainer, {sampler} for the sampler",
    )


def _deal(chips: list[str], num_samplers: int) -> list[str]:
    if len(chips) < num_samplers:
        raise DeviceError(
            f"sampler.num_processes is {num_samplers}, and there are {len(chips)} devices for "
            f"samplers ({', '.join(chips)}); start fewer, or give sampler.devices more"
        )
    return [",".join(chips[number::num_samplers]) for number in range(num_samplers)]


def _share_one(
    platform: str, trainer_memory: float, sampler_memory: float, num_samplers: int
) -> DevicePlan:
    if platform == "tpu":
        message = (
            "devices: one TPU chip serves one process only, so this run falls back to mode=sync; "
            "set sampler.devices=cpu to stay asynchronous"
        )
        return DevicePlan("sync", {}, ({},) * num_samplers, message)
    if trainer_memory + sampler_memory > 1:
        raise DeviceError(
            f"trainer.memory_fraction + sampler.memory_fraction = "
            f"{trainer_memory + sampler_memory:.2f} on one GPU; they must sum to at most 1"
        )
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    message = f"devices: one GPU shared, memory {trainer_memory} trainer, {sampler_memory} sampler"
    sampler_env = {name: str(sampler_memory / num_samplers)}
    return DevicePlan("local", {name: str(trainer_memory)}, (sampler_env,) * num_samplers, message)


def _split(chips: Sequence[str], trainer_devices: str, sampler_devices: str) -> tuple[str, str]:
    """Default: the first half trains, the second half samples."""
    if bool(trainer_devices) != bool(sampler_devices):
        raise DeviceError(
            "trainer.devices and sampler.devices are needed together, e.g. "
            "--config.trainer.devices=0,1 --config.sampler.devices=2,3"
        )
    if not trainer_devices:
        half = len(chips) // 2
        return ",".join(chips[:half]), ",".join(chips[half:])
    trainer, sampler = trainer_devices.split(","), sampler_devices.split(",")
    twice = sorted(set(trainer) & set(sampler))
    if twice:
        raise DeviceError(f"devices {', '.join(twice)} are given to trainer and sampler both")
    unknown = sorted(set(trainer + sampler) - set(chips))
    if unknown:
        raise DeviceError(
            f"there is no device {', '.join(unknown)}; this run may use {', '.join(chips)}"
        )
    return ",".join(trainer), ",".join(sampler)
