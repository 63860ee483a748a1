"""Labels, frozen leaves and the optimiser's arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trainer_cases as cases

from jaxrl_single.models import api, sizes
from jaxrl_single.trainer import optim

PARAMS = {
    "embedding": {"table": jnp.ones((3, 2))},
    "layers": {"mlp": {"up": jnp.full((1, 2, 2), 2.0)}, "norm": {"scale": jnp.ones((1, 2))}},
    "value_head": {"bias": jnp.zeros((1,))},
}
SGD = {"train": optax.sgd(0.5)}


def test_the_first_rule_that_matches_the_whole_path_wins():
    labels = optim.label(
        PARAMS, ((".*/mlp/.*", "train"), ("layers/.*", "frozen"), ("(embedding|value_head).*", "b"))
    )
    assert labels == {
        "embedding": {"table": "b"},
        "layers": {"mlp": {"up": "train"}, "norm": {"scale": "frozen"}},
        "value_head": {"bias": "b"},
    }


def test_a_parameter_without_a_rule_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"\['embedding/table', 'value_head/bias'\]"):
        optim.label(PARAMS, (("layers/.*", "train"), ("table", "train"), ("value_head", "train")))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (((".*", "trian"),), r"labels \['trian'\]; allowed are 'frozen' and \['train'\]"),
        (((".*", "frozen"),), "freeze every parameter"),
    ],
)
def test_labels_that_train_nothing_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        optim.build(PARAMS, rules=rules, transforms=SGD, clip_norm=0)


def test_trainable_and_frozen_are_two_halves():
    labels = optim.label(PARAMS, cases.CRITIC_RULES)
    assert set(optim.trainable(PARAMS, labels)) == {"layers", "value_head"}
    assert set(optim.trainable(PARAMS, labels)["layers"]) == {"mlp"}
    assert set(optim.frozen(PARAMS, labels)["layers"]) == {"norm"}
    both = optim.merge(optim.trainable(PARAMS, labels), optim.frozen(PARAMS, labels))
    cases.assert_equal(both, PARAMS)


def test_the_critic_of_rl_trains_what_the_paper_trains():
    # SAO §3.2: expert projections (the MLP of dense models) and the value head.
    for size, block in (("tiny_moe", "experts"), ("tiny", "mlp")):
        critic = api.build_critic(sizes.get(size, vocab_size=8))
        shapes = jax.eval_shape(critic.init, jax.random.key(0))
        labels = optim.label(shapes, cases.CRITIC_RULES)
        trained = jax.tree_util.tree_leaves_with_path(optim.trainable(shapes, labels))
        assert {optim.path_name(path) for path, _ in trained} == {
            f"layers/{block}/gate",
            f"layers/{block}/up",
            f"layers/{block}/down",
            "value_head/kernel",
            "value_head/bias",
        }


def test_the_bias_of_a_router_is_frozen_where_all_else_trains():
    policy = api.build_policy(sizes.get("tiny_glm", vocab_size=8))
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    frozen = optim.frozen(shapes, optim.label(shapes, optim.ALL_TRAIN))
    leaves = jax.tree_util.tree_leaves_with_path(frozen)
    assert [optim.path_name(path) for path, _ in leaves] == ["layers/router/bias"]


def test_frozen_leaves_have_no_slots_and_pass_through():
    adam = {"train": optim.adamw(0.1, b1=0.9, b2=0.95, weight_decay=0.5)}
    optimizer = optim.build(PARAMS, rules=cases.CRITIC_RULES, transforms=adam, clip_norm=1.0)
    slots = jax.tree.leaves(optimizer.init(PARAMS))
    trained = optim.trainable(PARAMS, optimizer.labels)
    # Two moments of each trained leaf; besides them only scalar counts.
    assert sum(leaf.size for leaf in slots if leaf.ndim) == 2 * sum(
        leaf.size for leaf in jax.tree.leaves(trained)
    )
    gradients = jax.tree.map(jnp.ones_like, trained)
    moved, _ = optim.apply(PARAMS, optimizer.init(PARAMS), optimizer, gradients)
    assert moved["embedding"]["table"] is PARAMS["embedding"]["table"]
    assert (moved["layers"]["mlp"]["up"] != PARAMS["layers"]["mlp"]["up"]).all()


def test_the_norm_is_clipped_over_all_trained_leaves_together():
    optimizer = optim.build(PARAMS, rules=cases.CRITIC_RULES, transforms=SGD, clip_norm=1.0)
    trained = optim.trainable(PARAMS, optimizer.labels)
    gradients = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 2.0), trained)  # 5 entries
    moved, _ = optim.apply(PARAMS, optimizer.init(PARAMS), optimizer, gradients)
    step = 0.5 * 2 / np.sqrt(5 * 4)
    np.testing.assert_allclose(moved["value_head"]["bias"], [-step], rtol=1e-6)
    np.testing.assert_allclose(moved["layers"]["mlp"]["up"], 2 - step, rtol=1e-6)


def test_updates_too_small_for_narrow_parameters_add_up():
    """At a learning rate of 1e-6 every one of them is below half a unit in the last place."""
    start = {"w": 0.02 * np.random.default_rng(0).standard_normal(500).astype(np.float32)}
    moved = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        params = jax.tree.map(lambda leaf, dtype=dtype: jnp.asarray(leaf, dtype), start)
        first = np.asarray(params["w"], np.float32)
        adam = {"train": optim.adamw(1e-6, b1=0.9, b2=0.95, weight_decay=0.0)}
        optimizer = optim.build(params, rules=optim.ALL_TRAIN, transforms=adam, clip_norm=0)
        update = jax.jit(
            lambda *state, optimizer=optimizer: optim.apply(*state[:2], optimizer, state[2])
        )
        state = optimizer.init(params)
        for _ in range(300):
            params, state = update(params, state, {"w": jnp.ones(500)})
        assert params["w"].dtype == dtype
        moved[dtype] = np.asarray(optim.values(params, state, optimizer)["w"]) - first
    np.testing.assert_allclose(moved[jnp.float32], -3e-4, rtol=1e-2)
    np.testing.assert_allclose(moved[jnp.bfloat16], moved[jnp.float32], rtol=1e-2)
    # The parameter itself is what its master rounds to.
    shown = np.asarray(params["w"], np.float32) - first
    np.testing.assert_allclose(shown.mean(), -3e-4, rtol=0.1)


def test_low_precision_parameters_are_updated_in_float32():
    # Each update rounds the sum once; rounding the update itself to bfloat16 would lose it.
    params = {"w": jnp.full((4,), 1.0, jnp.bfloat16)}
    adam = {"train": optim.adamw(0.1, b1=0.9, b2=0.95, weight_decay=0.0)}
    optimizer = optim.build(params, rules=optim.ALL_TRAIN, transforms=adam, clip_norm=0)
    state = optimizer.init(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.ndim} == {jnp.dtype("float32")}
    gradient = {"w": jnp.full((4,), 1 + 2**-12, jnp.float32)}
    moved, state = optim.apply(params, state, optimizer, gradient)
    assert moved["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(moved["w"], np.float32), 0.9, atol=2**-9)
    first_moment = next(leaf for leaf in jax.tree.leaves(state) if leaf.ndim)
    np.testing.assert_allclose(first_moment, 0.1 * (1 + 2**-12), rtol=1e-6)


def test_schedules():
    flat = optim.warmup(2.0, warmup_steps=4)
    np.testing.assert_allclose([flat(n) for n in range(6)], [0.5, 1.0, 1.5, 2.0, 2.0, 2.0])
    assert optim.warmup(2.0, warmup_steps=0)(0) == 2.0
    falling = optim.warmup(2.0, warmup_steps=0, decay_steps=10, final_fraction=0.1)
    found = [float(falling(n)) for n in (0, 5, 10, 99)]
    np.testing.assert_allclose(found, [2.0, 1.1, 0.2, 0.2], rtol=1e-6)
    curve = optim.warmup(1.0, warmup_steps=2, decay="cosine", decay_steps=40, final_fraction=0.1)
    values = [float(curve(n)) for n in range(40)]
    np.testing.assert_allclose(values[:2], [0.5, 1.0])
    np.testing.assert_allclose(values[20], 0.55, atol=1e-6)  # half way down from step 2 to 40
    np.testing.assert_allclose([values[-1], float(curve(100))], 0.1, atol=1e-6)
    assert (np.diff(values[1:]) < 0).all()
    with pytest.raises(ValueError, match="'step', allowed are"):
        optim.warmup(1.0, warmup_steps=0, decay="step")


def test_the_table_lists_every_parameter_and_the_totals():
    text = optim.table(PARAMS, optim.label(PARAMS, cases.CRITIC_RULES))
    assert "train      (1, 2, 2)            layers/mlp/up" in text
    assert text.splitlines()[-2:] == ["frozen     8 parameters", "train      5 parameters"]
