"""Who gets which accelerator: environment variables, set before a process imports jax.

CPU: all processes share the cores. Several GPUs or TPU chips: `trainer.devices` and
`sampler.devices` name the chips of each side; several samplers deal theirs out. One GPU: all share
it, each with its memory fraction. One TPU chip can be held by one process only: the samplers go to
the CPU when their devices are "cpu", else the run falls back to `sync`. A trainer that shares with
nobody, `sync` being one process, takes the chips that it names, or all.
"""

import dataclasses
import glob
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence

_CPU = ("cpu", ("0",))
VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}


class DeviceError(ValueError):
    """The requested split of devices is impossible; the message says what to change."""


@dataclasses.dataclass(frozen=True)
class DevicePlan:
    """What `plan` decided.

    Attributes:
      mode: "local", or "sync" when two processes can't share what there is.
      trainer_env: variables to add to the environment of the trainer, or of the only process.
      sampler_envs: the same for each sampler.
      num_trainer_devices: that jax will see there; None when nobody knows, since a TPU chip may be
        one or two.
      message: one line for people.
    """

    mode: str
    trainer_env: dict[str, str]
    sampler_envs: tuple[dict[str, str], ...]
    num_trainer_devices: int | None
    message: str


def detect() -> tuple[str, tuple[str, ...]]:
    """(platform, its chips as VISIBLE names them) without importing jax.

    JAX_PLATFORMS=cpu wins over what is plugged in, and so do the variables of VISIBLE, which a
    cluster's scheduler may have set.
    """
    return _visible()


def _visible() -> tuple[str, tuple[str, ...]]:
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return _CPU
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
    return _CPU


def unusable() -> str:
    """Why jax can't compute on the chips that are visible, and what to do; "" when it can.

    Told by what is installed: jax itself, asked, would take the devices at once, and without a
    plugin it computes on the CPU as if that were meant.
    """
    platform, chips = _visible()
    if platform == "cpu" or _has_plugin(platform):
        return ""
    extra = {
        "gpu": 'pip install -e ".[cuda13]" (".[cuda12]" for a driver older than 580)',
        "tpu": 'pip install -e ".[tpu]"',
    }
    return (
        f"{platform.upper()} {','.join(chips)} can't be used, because the jax that is installed is "
        f"the one for CPUs; {extra[platform]} mends that, and JAX_PLATFORMS=cpu says that the CPU "
        "is meant"
    )


def _has_plugin(platform: str) -> bool:
    """Whether a plugin of jax for this platform is installed; jax is not imported."""
    if platform == "tpu":
        return importlib.util.find_spec("libtpu") is not None
    names = [point.name for point in importlib.metadata.entry_points(group="jax_plugins")]
    namespace = importlib.util.find_spec("jax_plugins")
    for place in namespace.submodule_search_locations or () if namespace else ():
        names += os.listdir(place)
    return any("cuda" in name or "rocm" in name for name in names)


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
    if platform == "cpu":
        return DevicePlan(mode, {}, nothing, _cpu_devices(), "devices: CPU")
    trainer = _named("trainer.devices", trainer_devices, chips)
    if mode == "sync":
        return _alone(mode, platform, chips, trainer, nothing, "one process")
    if num_samplers == 0:
        return _alone(mode, platform, chips, trainer, (), "samplers elsewhere")
    if sampler_devices == "cpu":
        on_cpu = ({"JAX_PLATFORMS": "cpu"},) * num_samplers
        return _alone(mode, platform, chips, trainer, on_cpu, "sampler on CPU")
    sampler = _named("sampler.devices", sampler_devices, chips)
    if len(chips) == 1:
        return _share_one(platform, trainer_memory, sampler_memory, num_samplers)
    trainer, sampler = _split(chips, trainer, sampler)
    variable, own = VISIBLE[platform], ",".join(trainer)
    return DevicePlan(
        mode,
        {variable: own},
        tuple({variable: dealt} for dealt in _deal(sampler, num_samplers)),
        _count(platform, trainer),
        f"devices: {platform.upper()} {own} for the trainer, {','.join(sampler)} for the sampler",
    )


def check_mesh(found: DevicePlan, sizes: Mapping[str, int]) -> None:
    """Raises DeviceError when the trainer has not as many devices as its mesh.

    Args:
      sizes: of the axes, `trainer.mesh` of the config.
    """
    needed, there = math.prod(sizes.values()), found.num_trainer_devices
    if there is not None and needed > there:
        raise DeviceError(
            f"trainer.mesh is {dict(sizes)}, which needs {needed} devices, and the trainer has "
            f"{there} ({found.message}); change the sizes so that their product is at most that"
        )


def _alone(
    mode: str,
    platform: str,
    chips: Sequence[str],
    trainer: Sequence[str],
    sampler_envs: tuple[dict[str, str], ...],
    others: str,
) -> DevicePlan:
    """All chips are the trainer's if it names none."""
    env = {VISIBLE[platform]: ",".join(trainer)} if trainer else {}
    where = (
        f"{platform.upper()} {','.join(trainer)}" if trainer else f"{len(chips)} {platform.upper()}"
    )
    message = f"devices: trainer on {where}, {others}"
    return DevicePlan(mode, env, sampler_envs, _count(platform, trainer or chips), message)


def _count(platform: str, chips: Sequence[str]) -> int | None:
    return None if platform == "tpu" else len(chips)


def _cpu_devices() -> int:
    """One, unless jax was told otherwise by a variable."""
    forced = re.search(r"host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    told = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    return max(int(forced[1]) if forced else 1, int(told) if told.isdecimal() else 1)


def _named(field: str, value: str, chips: Sequence[str]) -> list[str]:
    """The chips that a field of the config lists; [] if it is empty."""
    names = [name.strip() for name in value.split(",")] if value else []
    unknown = sorted({name or "''" for name in names if name not in chips})
    if unknown:
        raise DeviceError(
            f"{field} is {value!r}: there is no device {', '.join(unknown)}; this run may use "
            f"{', '.join(chips)}"
        )
    if len(set(names)) < len(names):
        raise DeviceError(f"{field} is {value!r}, which names a device twice")
    return names


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
        return DevicePlan("sync", {}, ({},) * num_samplers, None, message)
    if trainer_memory + sampler_memory > 1:
        raise DeviceError(
            f"trainer.memory_fraction + sampler.memory_fraction = "
            f"{trainer_memory + sampler_memory:.2f} on one GPU; they must sum to at most 1"
        )
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    message = f"devices: one GPU shared, memory {trainer_memory} trainer, {sampler_memory} sampler"
    sampler_env = {name: str(sampler_memory / num_samplers)}
    trainer_env = {name: str(trainer_memory)}
    return DevicePlan("local", trainer_env, (sampler_env,) * num_samplers, 1, message)


def _split(
    chips: Sequence[str], trainer: list[str], sampler: list[str]
) -> tuple[list[str], list[str]]:
    """Default: the first half trains, the second half samples."""
    if bool(trainer) != bool(sampler):
        raise DeviceError(
            "trainer.devices and sampler.devices are needed together, e.g. "
            "--config.trainer.devices=0,1 --config.sampler.devices=2,3"
        )
    if not trainer:
        half = len(chips) // 2
        return list(chips[:half]), list(chips[half:])
    twice = sorted(set(trainer) & set(sampler))
    if twice:
        raise DeviceError(f"devices {', '.join(twice)} are given to trainer and sampler both")
    return trainer, sampler
