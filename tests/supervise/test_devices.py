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
