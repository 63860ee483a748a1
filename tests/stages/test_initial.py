"""A run's first parameters: a checkpoint's, placed where training has them."""

import jax
import numpy as np
import pytest

from configs import common
from jaxrl_single import param_tree
from jaxrl_single.models import api, hf, hf_config, hf_names, pretrained, sizes
from jaxrl_single.stages import initial, placement


def checkpoint_of(directory, size):
    shape = sizes.get(size, vocab_size=64)
    params = random_params(shape)
    hf.save(directory, shape, params, context_length=128)
    return params


def random_params(shape, *, critic=False):
    rng = np.random.default_rng(0)
    dtypes = hf_names.leaf_dtypes(shape, critic=critic)
    return param_tree.unflatten(
        {
            path: rng.standard_normal(leaf).astype(dtypes[path])
            for path, leaf in hf_names.leaf_shapes(shape, critic=critic).items()
        }
    )


def config_of(path, **mesh):
    config = common.base()
    config.model.path = str(path)
    config.trainer.mesh.update(mesh)
    return config


@pytest.mark.parametrize(
    ("size", "mesh"),
    [
        ("tiny_llama", {}),
        ("tiny_llama", {"fsdp": 2, "tensor": 2}),
        ("tiny_glm", {"data": 2, "expert": 2, "fsdp": 2}),
    ],
)
def test_a_checkpoint_is_read_onto_the_mesh(size, mesh, tmp_path):
    params = checkpoint_of(tmp_path / "model", size)
    config = config_of(tmp_path / "model", **mesh)
    policy = api.build_policy(hf.describe(tmp_path / "model").model)
    shardings = placement.make(config).parameters
    found = initial.policy_params(config, policy, shardings)
    jax.tree.map(np.testing.assert_array_equal, found, params)
    expected = param_tree.flatten(shardings(params))
    for path, leaf in param_tree.flatten(found).items():
        assert leaf.sharding == expected[path], path
    if mesh:
        split = [leaf for leaf in jax.tree.leaves(found) if not leaf.is_fully_replicated]
        assert len(split) > 4


def test_what_is_spread_over_devices_is_written_byte_by_byte(tmp_path):
    checkpoint_of(tmp_path / "model", "tiny_moe")
    config = config_of(tmp_path / "model", fsdp=2, tensor=2, expert=2)
    shape = hf.describe(tmp_path / "model").model
    shardings = placement.make(config).parameters
    spread = initial.policy_params(config, api.build_policy(shape), shardings)
    hf.save(tmp_path / "again", shape, spread, context_length=128)
    first, again = (tmp_path / name / "model.safetensors" for name in ("model", "again"))
    assert first.read_bytes() == again.read_bytes()


def test_a_device_reads_its_part_alone_and_equal_parts_once(tmp_path, monkeypatch):
    checkpoint_of(tmp_path / "model", "tiny_moe")
    config = config_of(tmp_path / "model", data=2, expert=4)
    read = []
    leaf = pretrained.Pretrained.leaf

    def spy(self, path, index=None):
        read.append((path, leaf(self, path, index).shape))
        return leaf(self, path, index)

    monkeypatch.setattr(pretrained.Pretrained, "leaf", spy)
    policy = api.build_policy(hf.describe(tmp_path / "model").model)
    initial.policy_params(config, policy, placement.make(config).parameters)
    gates = [shape for path, shape in read if path == "layers/experts/gate"]
    assert gates == [(2, 1, 64, 64)] * 4  # eight devices, four experts, one each
    assert len([path for path, _ in read if path == "final_norm/scale"]) == 1


@pytest.mark.parametrize("mesh", [{}, {"fsdp": 2, "tensor": 2}])
def test_random_parameters_do_not_depend_on_the_mesh(mesh):
    config = config_of("", **mesh)
    policy = api.build_policy(sizes.get("tiny", vocab_size=64))
    shardings = placement.make(config).parameters
    found = initial.policy_params(config, policy, shardings)
    expected = policy.init(jax.random.key(config.seed))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    abstract = initial.abstract_params(policy.init, shardings)
    for shape, leaf in zip(jax.tree.leaves(abstract), jax.tree.leaves(found), strict=True):
        assert (shape.shape, shape.dtype, shape.sharding) == (leaf.shape, leaf.dtype, leaf.sharding)


def test_a_critic_is_no_policy_to_start_from(tmp_path):
    shape = sizes.get("tiny", vocab_size=64)
    critic = random_params(shape, critic=True)
    hf.write(
        tmp_path / "critic",
        hf_config.Description(shape, 128, ()),
        hf.tensors(shape, critic, is_critic=True),
        write_text=lambda directory: None,
        is_critic=True,
    )
    config = config_of(tmp_path / "critic")
    shardings = placement.make(config).parameters
    with pytest.raises(ValueError, match="is a critic; a run starts from a policy"):
        initial.policy_params(config, api.build_policy(shape), shardings)
