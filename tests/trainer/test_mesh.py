"""Meshes, sharding rules, and the same numbers on one device and on eight."""

import pathlib

import jax
import numpy as np
import optax
import pytest
import safetensors.numpy
import trainer_cases as cases
from jax.sharding import PartitionSpec as P

from jaxrl_single.models import api, hf, sizes
from jaxrl_single.trainer import mesh as mesh_lib
from jaxrl_single.trainer import optim, supervised_step
from jaxrl_single.trainer import state as state_lib

GOLDEN = pathlib.Path(__file__).parent.parent / "models" / "golden"


def test_all_axes_exist_and_are_automatic():
    mesh = mesh_lib.make_mesh({"data": 2, "tensor": 4})
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "tensor": 4, "expert": 1, "context": 1}
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}
    assert mesh_lib.make_mesh({}).size == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"model": 2}, r"\['model'\]; allowed are \('data'"),
        ({"data": 0}, "at least 1"),
        ({"data": 16}, "needs 16 devices, there are 8"),
    ],
)
def test_impossible_meshes_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        mesh_lib.make_mesh(sizes)


@pytest.mark.parametrize("size", sorted(sizes.SIZES))
def test_every_parameter_has_a_rule(size):
    mesh = mesh_lib.make_mesh({"fsdp": 2, "tensor": 2, "expert": 2})
    shape = sizes.get(size, vocab_size=16)
    for model in (api.build_policy(shape), api.build_critic(shape)):
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        mesh_lib.parameter_shardings(shapes, mesh)


def test_specs_follow_the_rules_and_fall_back_where_a_size_does_not_divide():
    mesh = mesh_lib.make_mesh({"fsdp": 2, "tensor": 4})
    params = {
        "embedding": {"table": jax.ShapeDtypeStruct((10, 8), "float32")},  # 10 rows / 4
        "layers": {"mlp": {"up": jax.ShapeDtypeStruct((2, 8, 12), "float32")}},
    }
    shardings = mesh_lib.parameter_shardings(params, mesh)
    assert shardings["embedding"]["table"].spec == P(None, "fsdp")
    assert shardings["layers"]["mlp"]["up"].spec == P(None, "fsdp", "tensor")
    assert "P(None, 'fsdp')" in mesh_lib.table(params, mesh)


def test_a_parameter_without_a_rule_is_an_error_that_names_it():
    mesh = mesh_lib.make_mesh({})
    with pytest.raises(ValueError, match=r"\['layers/mamba/conv'\]"):
        mesh_lib.parameter_shardings({"layers": {"mamba": {"conv": np.zeros(3)}}}, mesh)


def test_slots_lie_where_their_parameter_lies():
    mesh = mesh_lib.make_mesh({"fsdp": 4, "tensor": 2})
    trainer = cases.Trainer()
    shardings = mesh_lib.state_shardings(trainer.initial, mesh)
    by_name = {
        optim.path_name(path): sharding.spec
        for path, sharding in jax.tree_util.tree_leaves_with_path(shardings.critic_opt)
    }
    moments = {name: spec for name, spec in by_name.items() if name.endswith("layers/mlp/up")}
    assert len(moments) == 2  # first and second
    assert set(moments.values()) == {P(None, "fsdp", "tensor")}
    counts = {name: spec for name, spec in by_name.items() if name.endswith("count")}
    assert set(counts.values()) == {P()}
    assert jax.tree.structure(shardings) == jax.tree.structure(trainer.initial)


def test_rows_must_divide_over_the_devices():
    mesh = mesh_lib.make_mesh({"data": 2, "fsdp": 4})
    with pytest.raises(ValueError, match="rows_per_micro_batch=4 is not a multiple of the 8"):
        mesh_lib.put_batch(cases.pack(cases.trajectories(3), rows=4), mesh)


def test_a_state_that_was_put_survives_donation():
    state = cases.Trainer().initial
    placed = mesh_lib.put_state(state, mesh_lib.make_mesh({}))
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 0, tree.policy_params), donate_argnums=0)(
        placed
    )
    assert not state.policy_params["embedding"]["table"].is_deleted()


def test_eight_devices_give_the_numbers_of_one():
    # Six rows hold something, two devices have nothing to train.
    batch = cases.pack(cases.trajectories(9, longest=14), rows=16, micro=8, slots=12)
    trained_rows = batch.loss_mask[0].any(axis=1)
    assert 0 < trained_rows.sum() < 8
    one = cases.Trainer(policy_transform=optax.sgd(1.0), critic_transform=optax.sgd(0.1))
    mesh = mesh_lib.make_mesh({"data": 2, "fsdp": 4})
    shardings = mesh_lib.state_shardings(one.initial, mesh)
    many = cases.Trainer(
        policy_transform=optax.sgd(1.0),
        critic_transform=optax.sgd(0.1),
        state_shardings=shardings,
    )
    expected, expected_metrics = one.step(batch)
    with jax.set_mesh(mesh):
        state = mesh_lib.put_state(many.initial, mesh)
        placed = mesh_lib.put_batch(batch, mesh)
        state, metrics = many.step(placed, state=state)
        cases.assert_close((state, metrics), (expected, expected_metrics), atol=1e-5)
        got = jax.tree.map(lambda leaf: leaf.sharding, state)
        assert got == shardings
        many.step(placed, state=state)
    assert many.jitted._cache_size() == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny_moe", "tiny_glm"])
def test_a_real_model_takes_the_same_step_on_eight_devices(size):
    policy = api.build_policy(cases.real_config(size))
    params = policy.init(jax.random.key(0))
    optimizer = cases.optimizer(params, transform=optax.sgd(1.0))
    step = supervised_step.make_supervised_step(policy, optimizer, chunk=cases.CHUNK)
    batch = cases.pack(cases.trajectories(9), rows=8)
    start = state_lib.init_model_state(params, optimizer)
    mesh = mesh_lib.make_mesh({"data": 2, "fsdp": 4})
    with jax.set_mesh(mesh):
        placed = mesh_lib.put_state(start, mesh)
        sharded, metrics = step(placed, mesh_lib.put_batch(batch, mesh))
    expected, expected_metrics = step(start, batch)
    cases.assert_close(sharded.params, expected.params, atol=1e-5)
    cases.assert_close(metrics, expected_metrics, atol=1e-5)
    assert cases.any_differs(expected.params, params)


@pytest.mark.parametrize(
    "name",
    [
        "glm4_moe",
        *(
            pytest.param(n, marks=pytest.mark.long)
            for n in ("qwen3", "qwen3_moe", "llama", "qwen2")
        ),
    ],
)
def test_checkpoints_of_each_family_on_eight_devices_give_the_numbers_of_transformers(name):
    shape, params = hf.load(GOLDEN / name, dtype="float32")
    expected = safetensors.numpy.load_file(GOLDEN / name / "expected.safetensors")
    policy = api.build_policy(shape)
    tokens = expected["tokens"]
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    mesh = mesh_lib.make_mesh({"fsdp": 2, "tensor": 2, "expert": 2})
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, mesh_lib.parameter_shardings(params, mesh))
        hidden = jax.jit(policy.hidden)(placed, tokens, positions, np.ones_like(tokens))
        logprobs = jax.nn.log_softmax(hidden @ policy.unembedding(placed).T)
    q_proj = placed["layers"]["attention"]["q_proj"]
    assert q_proj.addressable_shards[0].data.size == q_proj.size // 4
    np.testing.assert_allclose(logprobs, expected["logprobs"], atol=1e-4, rtol=0)
