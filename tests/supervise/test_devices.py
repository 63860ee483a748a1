import pytest

from jaxrl_single.supervise import devices


def plan(mode, platform, count, **changes):
    fields = dict(trainer_devices="", sampler_devices="", trainer_memory=0.45, sampler_memory=0.45)
    chips = [str(chip) for chip in range(count)] if isinstance(count, int) else count
    return devices.plan(mode, platform, chips, **{**fields, **changes})


def test_several_chips_are_split_in_halves_by_default():
    result = plan("local", "gpu", 8)
    assert result.trainer_env == {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert result.sampler_envs == ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"},)


def test_named_chips_are_used():
    result = plan("local", "tpu", 4, trainer_devices="0,1,2", sampler_devices="3")
    assert result.trainer_env == {"TPU_VISIBLE_CHIPS": "0,1,2"}
    assert result.sampler_envs == ({"TPU_VISIBLE_CHIPS": "3"},)


def test_one_gpu_is_shared_by_memory_fraction():
    result = plan("local", "gpu", 1, trainer_memory=0.6, sampler_memory=0.3)
    assert result.mode == "local"
    assert result.trainer_env == {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.6"}
    assert result.sampler_envs == ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"},)


def test_one_tpu_chip_falls_back_to_sync_unless_the_sampler_goes_to_cpu():
    assert plan("local", "tpu", 1).mode == "sync"
    on_cpu = plan("local", "tpu", 1, sampler_devices="cpu")
    assert (on_cpu.mode, on_cpu.sampler_envs) == ("local", ({"JAX_PLATFORMS": "cpu"},))


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("local", dict(sampler_devices="cpu")),
        ("local", dict(num_samplers=0)),
        ("local", dict(sampler_devices="6,7", num_samplers=0)),
        ("sync", {}),
        ("sync", dict(sampler_devices="6,7")),
    ],
)
def test_the_trainer_gets_its_named_chips_also_when_nobody_else_takes_any(mode, changes):
    everything = plan(mode, "gpu", 8, **changes)
    assert (everything.trainer_env, everything.num_trainer_devices) == ({}, 8)
    some = plan(mode, "gpu", 8, trainer_devices="4, 5", **changes)
    assert some.trainer_env == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert some.num_trainer_devices == 2
    assert "4,5" in some.message
    with pytest.raises(devices.DeviceError, match=r"trainer.devices .*no device 99, foo"):
        plan(mode, "gpu", 8, trainer_devices="4,99,foo", **changes)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("side", ["trainer", "sampler"])
def test_names_for_a_single_chip_are_read_too(platform, side):
    named = {f"{side}_devices": "0"}
    assert plan("local", platform, 1, **named) == plan("local", platform, 1)
    with pytest.raises(devices.DeviceError, match=rf"{side}.devices .*no device 4"):
        plan("local", platform, 1, **{f"{side}_devices": "4"})


@pytest.mark.parametrize(
    ("mode", "platform", "count", "known"),
    [
        ("local", "gpu", 8, 4),
        ("local", "gpu", 1, 1),
        ("sync", "gpu", 8, 8),
        ("local", "tpu", 8, None),  # a chip may be two devices
    ],
)
def test_a_mesh_larger_than_the_trainers_devices_is_refused(mode, platform, count, known):
    found = plan(mode, platform, count)
    assert found.num_trainer_devices == known
    devices.check_mesh(found, {"data": known or 64, "fsdp": 1})
    if known:
        with pytest.raises(devices.DeviceError, match=rf"trainer.mesh .*needs {2 * known} devices"):
            devices.check_mesh(found, {"data": known, "fsdp": 2})


@pytest.mark.parametrize(
    ("name", "value", "count"),
    [
        ("XLA_FLAGS", "", 1),
        ("XLA_FLAGS", "--a=1 --xla_force_host_platform_device_count=8", 8),
        ("JAX_NUM_CPU_DEVICES", "4", 4),
    ],
)
def test_a_cpu_may_be_told_to_be_several_devices(monkeypatch, name, value, count):
    for variable in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    assert plan("local", "cpu", 1).num_trainer_devices == count


def test_several_samplers_deal_out_their_chips():
    result = plan("local", "gpu", 8, trainer_devices="0,1,2", sampler_devices="3,4,5,6,7")
    assert result.sampler_envs == ({"CUDA_VISIBLE_DEVICES": "3,4,5,6,7"},)
    named = dict(trainer_devices="0,1,2", sampler_devices="3,4,5,6,7")
    result = plan("local", "gpu", 8, **named, num_samplers=2)
    chips = [env["CUDA_VISIBLE_DEVICES"] for env in result.sampler_envs]
    assert chips == ["3,5,7", "4,6"]


def test_several_samplers_share_the_memory_of_one_gpu():
    result = plan("local", "gpu", 1, sampler_memory=0.4, num_samplers=2)
    assert result.sampler_envs == ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"},) * 2


def test_samplers_elsewhere_leave_every_chip_to_the_trainer():
    result = plan("local", "tpu", 1, num_samplers=0)
    assert (result.mode, result.trainer_env, result.sampler_envs) == ("local", {}, ())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(trainer_devices="0,1", sampler_devices="1"), "both"),
        (dict(trainer_devices="0,9", sampler_devices="1"), "no device 9"),
        (dict(trainer_devices="0"), "together"),
        (dict(trainer_devices="0,0", sampler_devices="1"), "names a device twice"),
        (dict(trainer_devices="0", sampler_devices="1,,2"), "sampler.devices .*no device ''"),
        (dict(num_samplers=3), "num_processes is 3, and there are 2 devices"),
    ],
)
def test_impossible_splits_say_what_to_change(changes, words):
    with pytest.raises(devices.DeviceError, match=words):
        plan("local", "gpu", 4, **changes)


def test_memory_fractions_of_one_gpu_must_fit():
    with pytest.raises(devices.DeviceError, match="at most 1"):
        plan("local", "gpu", 1, trainer_memory=0.7, sampler_memory=0.5)


def test_cpu_needs_no_variables(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert devices.detect() == ("cpu", ("0",))
    assert plan("local", "cpu", 1).trainer_env == {}


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ("gpu", ("0", "1", "2", "3"))),
        ("2,3", ("gpu", ("2", "3"))),
        ("GPU-6a, GPU-7b", ("gpu", ("GPU-6a", "GPU-7b"))),
        ("", ("cpu", ("0",))),
        ("-1", ("cpu", ("0",))),
    ],
)
def test_only_what_the_scheduler_gave_is_used(monkeypatch, visible, found):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    plugged = {"/dev/nvidia[0-9]*": [f"/dev/nvidia{n}" for n in range(4)]}
    monkeypatch.setattr(devices.glob, "glob", lambda pattern: plugged.get(pattern, []))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.detect() == found


def test_chips_keep_their_names():
    halves = plan("local", "gpu", ["4", "5"])
    assert halves.trainer_env == {"CUDA_VISIBLE_DEVICES": "4"}
    assert halves.sampler_envs == ({"CUDA_VISIBLE_DEVICES": "5"},)
    named = dict(trainer_devices="5", sampler_devices="4")
    assert plan("local", "gpu", ["4", "5"], **named).trainer_env == {"CUDA_VISIBLE_DEVICES": "5"}
    with pytest.raises(devices.DeviceError, match="no device 0; this run may use 4, 5"):
        plan("local", "gpu", ["4", "5"], trainer_devices="0", sampler_devices="4")
