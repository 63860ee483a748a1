"""Parameters as plain dicts, critics from policies, and the same numbers on a mesh."""

import warnings

import jax
import jax.numpy as jnp
import model_lab as lab
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxrl_single.models import api, platform, sizes

SHARED_SHAPES = {
    "embedding/table": (40, 64),
    "final_norm/scale": (64,),
    "unembedding/table": (40, 64),
    "layers/attention_norm/scale": (2, 64),
    "layers/attention/q_proj": (2, 64, 64),
    "layers/attention/k_proj": (2, 64, 32),
    "layers/attention/v_proj": (2, 64, 32),
    "layers/attention/o_proj": (2, 64, 64),
    "layers/mlp_norm/scale": (2, 64),
}
NORMS = {"layers/attention/q_norm/scale": (2, 16), "layers/attention/k_norm/scale": (2, 16)}
BIASES = {
    "layers/attention/q_bias": (2, 64),
    "layers/attention/k_bias": (2, 32),
    "layers/attention/v_bias": (2, 32),
}
MLP = {
    "layers/mlp/gate": (2, 64, 128),
    "layers/mlp/up": (2, 64, 128),
    "layers/mlp/down": (2, 128, 64),
}
EXPERTS = {
    "layers/router/kernel": (2, 64, 4),
    "layers/experts/gate": (2, 4, 64, 64),
    "layers/experts/up": (2, 4, 64, 64),
    "layers/experts/down": (2, 4, 64, 64),
}
SHARED_EXPERTS = {
    "layers/router/bias": (2, 4),
    "layers/shared_experts/gate": (2, 64, 64),
    "layers/shared_experts/up": (2, 64, 64),
    "layers/shared_experts/down": (2, 64, 64),
}
OWN_SHAPES = {
    "tiny": NORMS | MLP,
    "tiny_moe": NORMS | EXPERTS,
    "tiny_qwen2": BIASES | MLP,
    # Its first layer, an attention with an MLP, lies in another stack.
    "tiny_glm": BIASES
    | EXPERTS
    | SHARED_EXPERTS
    | {
        path.replace("layers/", "dense_layers/", 1): (1, *shape[1:])
        for path, shape in (SHARED_SHAPES | BIASES | MLP).items()
        if path.startswith("layers/")
    },
}


def _shapes(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves
    }


def _is_plain(tree):
    if isinstance(tree, jax.Array):
        return True
    return type(tree) is dict and all(_is_plain(child) for child in tree.values())


@pytest.mark.parametrize("size", sorted(OWN_SHAPES))
def test_parameters_are_plain_dicts_with_the_documented_paths(size):
    params = lab.params_of(size)

    assert _is_plain(params)
    assert _shapes(params) == SHARED_SHAPES | OWN_SHAPES[size]


def test_tied_embeddings_have_one_table():
    policy = lab.policy_of("tiny", tie_embeddings=True)

    shapes = _shapes(jax.eval_shape(policy.init, jax.random.key(0)))

    assert "unembedding/table" not in shapes
    params = dict(lab.params_of("tiny"))
    np.testing.assert_array_equal(
        lab.policy_of("tiny").unembedding(params), params["unembedding"]["table"]
    )
    del params["unembedding"]
    np.testing.assert_array_equal(policy.unembedding(params), params["embedding"]["table"])


def test_initialisation_depends_on_the_key_alone_and_layers_differ():
    policy = lab.policy_of("tiny")
    first, again, other = (policy.init(jax.random.key(seed)) for seed in (4, 4, 5))

    lab.assert_trees_equal(first, again)
    kernel = first["layers"]["mlp"]["gate"]
    assert not np.array_equal(kernel, other["layers"]["mlp"]["gate"])
    assert not np.array_equal(kernel[0], kernel[1])
    # 2 x 64 x 128 draws of standard deviation 1 / 8: the estimate is good to 1 %.
    assert np.std(kernel) == pytest.approx(0.125, rel=0.03)


def test_building_and_running_warns_about_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = api.build_policy(sizes.get("tiny_moe", vocab_size=lab.VOCAB_SIZE))
        params = jax.eval_shape(policy.init, jax.random.key(0))
        jax.eval_shape(policy.hidden, params, *lab.packed_rows(((5,), (7,))))
        api.build_critic(policy.config)


@pytest.mark.parametrize("size", lab.SIZES)
def test_a_critic_made_from_a_policy_reads_its_hidden_states(size):
    policy, params, rows = (
        lab.policy_of(size),
        lab.params_of(size),
        lab.packed_rows(((9, 12), (17,))),
    )
    critic = api.build_critic(policy.config)
    critic_params = critic.from_policy(params, jax.random.key(1))
    values = jax.jit(critic.values)

    np.testing.assert_array_equal(values(critic_params, *rows), np.zeros(rows[0].shape))
    kernel = np.random.default_rng(0).normal(size=(64, 1)).astype(np.float32)
    critic_params["value_head"] = {"kernel": kernel, "bias": np.float32([0.25])}
    hidden = lab.hidden_program(policy)(params, *rows)
    np.testing.assert_allclose(
        values(critic_params, *rows), (hidden @ kernel)[..., 0] + 0.25, rtol=1e-5, atol=1e-5
    )


def test_a_critic_made_from_a_policy_owns_its_buffers_and_its_own_paths():
    params = lab.params_of("tiny_moe")
    critic = api.build_critic(lab.policy_of("tiny_moe").config)

    made = critic.from_policy(params, jax.random.key(1))

    assert _is_plain(made)
    assert _shapes(made) == _shapes(jax.eval_shape(critic.init, jax.random.key(0)))
    owned = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(params)}
    assert not owned & {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(made)}


def test_values_are_float32_in_every_dtype():
    critic = api.build_critic(sizes.get("tiny", vocab_size=lab.VOCAB_SIZE, dtype="bfloat16"))
    params = jax.eval_shape(critic.init, jax.random.key(0))

    values = jax.eval_shape(critic.values, params, *lab.packed_rows(((5,), (7,))))

    assert params["value_head"]["kernel"].dtype == jnp.bfloat16
    assert values.dtype == jnp.float32


@pytest.mark.parametrize("size", ["tiny_moe", pytest.param("tiny_glm", marks=pytest.mark.long)])
def test_rows_and_parameters_sharded_over_a_mesh_give_the_same_numbers(size):
    policy, params, rows = (
        lab.policy_of(size),
        lab.params_of(size),
        lab.packed_rows(((9, 12), (17,))),
    )
    mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    expected = lab.hidden_program(policy)(params, *rows)

    with jax.set_mesh(mesh):
        placed = jax.tree.map(
            lambda leaf: jax.device_put(leaf, NamedSharding(mesh, _last_axis_spec(leaf))), params
        )
        on_rows = NamedSharding(mesh, PartitionSpec("data"))
        sharded = jax.jit(policy.hidden)(placed, *(jax.device_put(row, on_rows) for row in rows))

    np.testing.assert_allclose(sharded, expected, atol=1e-5)


def _last_axis_spec(leaf):
    return PartitionSpec(*[None] * (leaf.ndim - 1), "fsdp")


def test_the_mesh_in_use_decides_what_a_program_is_compiled_for():
    device = jax.sharding.AbstractDevice(device_kind="TPU v5", num_cores=1, platform="tpu")
    elsewhere = jax.sharding.AbstractMesh(
        (4,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device
    )

    assert platform.on_cpu()
    with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))):
        assert platform.on_cpu()
    with jax.sharding.use_abstract_mesh(elsewhere):
        assert not platform.on_cpu()
