"""What every rule must do: masks, garbage, extremes, no gradient, any shape and any packing."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.keep_rules import fixture

RULES = fixture.TOKEN_RULES | fixture.TRAJECTORY_RULES | fixture.BATCH_RULES
NUM_TRAJECTORIES = 6  # the last has no tokens
PER_TRAJECTORY = ("reward",)


def names_of(rule) -> list[str]:
    parameters = inspect.signature(rule).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def make_batch() -> dict:
    """A stream of 40 tokens: 5 trajectories, then padding; the third counts no token at all."""
    rng = np.random.default_rng(0)
    index = np.repeat([0, 1, 2, 3, 4, -1], [9, 4, 5, 12, 6, 4]).astype(np.int32)
    mask = (rng.random(40) < 0.7) & (index >= 0) & (index != 2)
    policy = np.log(rng.dirichlet(np.ones(4), 40))
    noise = rng.normal(size=policy.shape) * np.array([0.1, 0.8, 0.3, 0.6, 0.2, 1])[index, None]
    rollout = policy + noise
    rollout -= np.log(np.sum(np.exp(rollout), axis=-1, keepdims=True))
    batch = {
        "policy_logprobs": policy[:, 0],
        "rollout_logprobs": rollout[:, 0],
        "log_ratio": policy[:, 0] - rollout[:, 0],
        "engine_log_ratio": policy[:, 0] - rollout[:, 0],
        "full_policy_logprobs": policy,
        "full_rollout_logprobs": rollout,
        "topk_policy_logprobs": policy[:, 1:3],
        "topk_rollout_logprobs": rollout[:, 1:3],
        "entropies": rng.random(40) * 2,
        "advantages": rng.normal(size=40),
        "reward": np.array([0.0, 1, 0, 0, 1, np.nan]),
    }
    batch = {name: np.float32(array) for name, array in batch.items()}
    return batch | {"action_mask": mask, "trajectory_index": index}


def with_garbage(batch: dict, garbage) -> dict:
    mask, spoilt = batch["action_mask"], {}
    for name, x in batch.items():
        spoilt[name] = x
        if np.issubdtype(x.dtype, np.floating) and name not in PER_TRAJECTORY:
            hole = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
            spoilt[name] = np.where(hole, x, np.asarray(garbage, x.dtype))
    return spoilt


def call(rule, batch: dict):
    arrays = batch | {"num_trajectories": NUM_TRAJECTORIES}
    return rule(*(arrays[name] for name in names_of(rule)))


@jax.jit
def every_rule(batch: dict) -> dict:
    """All rules in one program: compiling them one by one takes most of the time of the tests."""
    return {name: call(rule, batch) for name, rule in RULES.items()}


@functools.cache
def reference() -> dict:
    return jax.device_get(every_rule(make_batch()))


@functools.cache
def in_double_precision() -> dict:
    with jax.enable_x64(True):
        batch = {k: np.float64(v) if v.dtype == np.float32 else v for k, v in make_batch().items()}
        return jax.device_get(every_rule(batch))


@functools.cache
def in_rows() -> dict:
    shaped = {
        name: x if name in PER_TRAJECTORY else x.reshape(2, 4, 5, *x.shape[1:])
        for name, x in make_batch().items()
    }
    return jax.device_get(every_rule(shaped))


@functools.cache
def mapped_over_tokens() -> dict:
    @jax.jit
    @jax.vmap
    def every_token_rule(batch):
        return {name: call(rule, batch) for name, rule in fixture.TOKEN_RULES.items()}

    batch = {k: v for k, v in make_batch().items() if k not in PER_TRAJECTORY}
    return jax.device_get(every_token_rule(batch))


@functools.cache
def gradients() -> dict:
    """By name of the rule and of the array."""
    batch = make_batch()
    floats = {k: v for k, v in batch.items() if np.issubdtype(v.dtype, np.floating)}

    def kept(floats):
        return jax.tree.map(jnp.sum, every_rule(batch | floats))

    return jax.device_get(jax.jit(jax.jacrev(kept))(floats))


@pytest.mark.parametrize("name", RULES)
def test_keeps_some_and_drops_some(name):
    """Otherwise the tests below would say little about the rule."""
    keep, mask = reference()[name], make_batch()["action_mask"]
    assert keep.dtype == np.float32
    assert keep.min() >= 0.0
    assert keep.max() <= 1.0
    np.testing.assert_array_equal(keep[~mask], 0.0)
    assert (keep[mask] > 0.5).any()
    assert (keep[mask] < 0.5).any() or name == "soft_gate"


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e38])
def test_garbage_under_the_mask_changes_nothing(garbage):
    got = every_rule(with_garbage(make_batch(), garbage))
    for name, keep in got.items():
        np.testing.assert_array_equal(keep, reference()[name], err_msg=name)


@pytest.mark.parametrize("name", RULES)
def test_any_shape_gives_the_same(name):
    got = in_rows()[name]
    assert got.shape == (2, 4, 5)
    np.testing.assert_allclose(got.reshape(-1), reference()[name], rtol=1e-6)


@pytest.mark.parametrize("name", fixture.TOKEN_RULES)
def test_token_rules_map_over_tokens(name):
    np.testing.assert_allclose(mapped_over_tokens()[name], reference()[name], rtol=1e-6)


@pytest.mark.parametrize("trajectory", range(5))
def test_a_trajectory_alone_fares_as_in_the_stream(trajectory):
    batch = make_batch()
    own = batch["trajectory_index"] == trajectory
    got = every_rule(batch | {"action_mask": batch["action_mask"] & own})
    for name in fixture.TOKEN_RULES | fixture.TRAJECTORY_RULES:
        expected = np.where(own, reference()[name], 0.0)
        np.testing.assert_array_equal(got[name], expected, err_msg=name)


def test_nothing_to_count():
    batch = make_batch()
    batch["action_mask"] = np.zeros_like(batch["action_mask"])
    for name, keep in every_rule(with_garbage(batch, np.nan)).items():
        np.testing.assert_array_equal(keep, 0.0, err_msg=name)


@pytest.mark.parametrize(("policy", "rollout"), [(-1e4, 0.0), (0.0, -1e4), (0.0, 0.0)])
def test_extreme_logprobs_and_entropy_zero(policy, rollout):
    """Finite in every case; the same policy twice is kept by all but the filter by entropy."""
    batch = make_batch()
    values = {"policy_logprobs": policy, "rollout_logprobs": rollout, "log_ratio": policy - rollout}
    for key, x in batch.items():
        for suffix, value in values.items():
            if key.endswith(suffix):
                batch[key] = np.full_like(x, value)
    batch["entropies"] = np.zeros_like(batch["entropies"])
    for name, keep in every_rule(batch).items():
        assert np.isfinite(keep).all(), name
        if policy == rollout and "filter" not in name:
            np.testing.assert_array_equal(keep, batch["action_mask"], err_msg=name)


@pytest.mark.parametrize("name", RULES)
def test_no_gradient_flows(name):
    for array, gradient in gradients()[name].items():
        np.testing.assert_array_equal(gradient, 0.0, err_msg=array)


def test_nan_on_a_counted_token_is_dropped():
    """A rule must not vouch for a broken token."""
    batch = make_batch()
    token = int(np.flatnonzero(batch["action_mask"])[0])
    for key, x in batch.items():
        if key.endswith(("logprobs", "log_ratio")):
            batch[key] = x.copy()
            batch[key][token] = np.nan
    for name, keep in every_rule(batch).items():
        assert not keep[token] > 0 or name == "entropy_filter", name


@pytest.mark.parametrize("name", RULES)
def test_float64_decides_as_float32(name):
    np.testing.assert_allclose(in_double_precision()[name], reference()[name], rtol=1e-5)
