"""What holds for all estimators: shapes, garbage, padding, vmap, precision, stop-gradient.

All of them are traced into one program, which costs one compilation instead of twenty.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.advantages import (
    baselines,
    branching,
    critic_gae,
    gigrpo,
    running_mean,
    spo,
    step_gae,
    three_spo,
    trace,
    whitening,
)

NUM_TASKS, NUM_TRAJECTORIES, LENGTH, GAP = 4, 7, 42, 6
GAE = {"discount": 0.9, "lambda_alpha": 1.5, "critic_lambda": 0.8}
SPO = {"half_life": 0.06, "rho_min": 0.875, "rho_max": 0.96}
SCORES = {"alpha": 1.0, "min_failures": 10, "min_rate": 0.1, "decay": 0.1}
CREDIT = {"offset": 0.1, "window": 3, "discount": 0.8, "outcome_bonus": 2.0, "credit_weight": 0.2}
STATELESS = {
    baselines.reward_only: {},
    baselines.reward_minus_prompt_value: {},
    baselines.batch_mean: {},
    baselines.batch_leave_one_out: {},
    baselines.group_mean: {},
    baselines.leave_one_out: {},
    baselines.group_normalised: {"eps": 1e-6},
    branching.branching: {},
    critic_gae.critic_gae: GAE,
    gigrpo.gigrpo: {"discount": 0.9, "step_weight": 0.5, "eps": 1e-6},
    gigrpo.gigrpo_mean: {"discount": 0.9, "step_weight": 0.5},
    step_gae.step_average: GAE,
    step_gae.step_last: GAE,
    step_gae.turn_level: GAE,
    trace.trace: {**CREDIT, "eps": 1e-6},
    whitening.whiten_tokens: {"eps": 1e-8},
    whitening.whiten_trajectories: {"eps": 1e-8},
}
STATEFUL = {
    running_mean.running_mean: (running_mean.running_mean_init, {"window": 3}, {"initial": 0.5}),
    running_mean.global_running_mean: (
        running_mean.global_running_mean_init,
        {"window": 3},
        {"initial": 0.5},
    ),
    spo.spo: (spo.spo_init, {"prior": 0.5}, SPO),
    three_spo.three_spo: (three_spo.three_spo_init, {}, SCORES),
}
FUNCTIONS = (*STATELESS, *STATEFUL)
NAMES = [function.__name__ for function in FUNCTIONS]
PER_TOKEN = ("rewards", "values", "action_mask", "trajectory_index", "turn_ids", "token_index")
PER_TOKEN += ("state_key", "log_ratio", "token_advantages")
# Whose result must not depend on the order of the trajectories.
UNORDERED = [function.__name__ for function in STATELESS if function is not branching.branching]


def batch(seed):
    """A stream of six trajectories; the third has no action, the seventh does not exist."""
    rng = np.random.default_rng(seed)
    index = np.append(np.sort(rng.integers(0, 6, LENGTH - GAP)), np.full(GAP, -1)).astype(np.int32)
    token_index = np.arange(LENGTH) - np.searchsorted(index[:-GAP], index)
    floats = rng.normal(size=(4, LENGTH)).astype(np.float32)
    trajectories = rng.normal(size=(5, NUM_TRAJECTORIES)).astype(np.float32)
    return {
        "rewards": floats[0],
        "values": floats[1],
        "log_ratio": 0.05 * floats[2],
        "token_advantages": floats[3],
        "action_mask": (rng.random(LENGTH) < 0.7) & (index != 2) & (index >= 0),
        "trajectory_index": index,
        "token_index": token_index.astype(np.int32),
        "turn_ids": (token_index // 3).astype(np.int32),
        "state_key": ((token_index // 3) % NUM_TASKS).astype(np.int32),
        "reward": rng.integers(0, 2, NUM_TRAJECTORIES).astype(np.float32),
        "trajectory_advantages": trajectories[0],
        "prompt_value": trajectories[1],
        "bootstrap_values": trajectories[2],
        "group": np.array([0, 0, 1, 1, 1, 0, 0], np.int32),
        "task": np.array([0, 3, 3, 1, 1, 0, 2], np.int32),
        "parent": np.array([-1, 0, 0, -1, 3, 1, -1], np.int32),
        "fork_index": np.array([0, 2, 2, 0, 1, 4, 0], np.int32),
        "valid": np.arange(NUM_TRAJECTORIES) < 6,
        "gold_logprobs": -np.abs(rng.normal(size=(NUM_TRAJECTORIES, 4))).astype(np.float32),
        "num_boundaries": np.array([4, 3, 2, 1, 0, 4, 4], np.int32),
    }


def arguments(function, arrays):
    tokens = function is whitening.whiten_tokens
    advantages = arrays["token_advantages" if tokens else "trajectory_advantages"]
    named = {**arrays, "advantages": advantages}
    parameters = inspect.signature(function).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return [named[name] for name in positional if name != "state"]


def call(function, arrays):
    if function in STATELESS:
        return function(*arguments(function, arrays), **STATELESS[function])
    init, shape, settings = STATEFUL[function]
    state = init(NUM_TASKS, **shape)
    return function(state, *arguments(function, arrays), **settings)


def everything(arrays):
    """The outputs of all functions by name, of a stream in two rows."""
    rows = {k: x.reshape(2, -1) if k in PER_TOKEN else x for k, x in arrays.items()}
    outputs = {f.__name__: call(f, rows) for f in FUNCTIONS if f is not critic_gae.critic_gae}
    outputs["critic_gae"] = call(critic_gae.critic_gae, arrays)  # takes flat streams only
    return jax.tree.map(lambda x: x.reshape(-1) if x.shape == (2, LENGTH // 2) else x, outputs)


compiled = jax.jit(everything)


@functools.cache
def reference(seed=0):
    return jax.device_get(compiled(batch(seed)))


@functools.cache
def garbage_results(garbage):
    """Everything that no rule counts overwritten."""
    arrays = {name: np.copy(array) for name, array in batch(0).items()}
    number = np.int32(min(max(np.nan_to_num(garbage), -1000), 1000))
    for name, array in arrays.items():
        if name in ("action_mask", "trajectory_index", "valid", "token_index"):
            continue
        off = ~arrays["action_mask" if name in PER_TOKEN else "valid"]
        array[off] = garbage if array.dtype == np.float32 else number
    beyond = np.arange(4)[None, :] >= arrays["num_boundaries"][:, None]
    arrays["gold_logprobs"][beyond] = garbage
    return jax.device_get(compiled(arrays))


@functools.cache
def gap_results():
    """With the padding moved into the middle of a turn, and back again."""
    arrays, place = batch(0), np.arange(LENGTH)
    place = np.where(place < 5, place, np.where(place < LENGTH - GAP, place + GAP, place - 31))
    moved = {k: x[np.argsort(place)] if k in PER_TOKEN else x for k, x in arrays.items()}
    assert (moved["trajectory_index"][5 : 5 + GAP] == -1).all()
    outputs = jax.device_get(compiled(moved))
    return jax.tree.map(lambda x: x[place] if x.shape == (LENGTH,) else x, outputs)


@functools.cache
def vmapped_double_results():
    with jax.enable_x64(True):
        stacked = jax.tree.map(lambda *arrays: np.stack(arrays), batch(0), batch(1))
        stacked = {
            name: jnp.asarray(array, jnp.float64) if array.dtype == np.float32 else array
            for name, array in stacked.items()
        }
        return jax.device_get(jax.jit(jax.vmap(everything))(stacked))


@functools.cache
def gradients():
    """Of each function's summed outputs with respect to every float array."""
    arrays = jax.tree.map(jnp.asarray, batch(0))
    floats = {name: array for name, array in arrays.items() if array.dtype == np.float32}

    def total(floats, function):
        outputs = jax.tree.leaves(call(function, {**arrays, **floats}))
        kept = [x for x in outputs if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(jnp.sum(x * jnp.arange(1.0, x.size + 1).reshape(x.shape)) for x in kept)

    def of_all(floats):
        return {f.__name__: jax.grad(total)(floats, f) for f in FUNCTIONS}

    return jax.device_get(jax.jit(of_all)(floats))


def assert_trees_equal(got, expected, **tolerance):
    def check(a, b):
        if tolerance:
            np.testing.assert_allclose(a, b, **tolerance)
        else:
            np.testing.assert_array_equal(a, b)

    jax.tree.map(check, got, expected)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 3e38, -5.0])
@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_count_changes_no_bit(name, garbage):
    assert_trees_equal(garbage_results(garbage)[name], reference()[name])


@pytest.mark.parametrize("name", NAMES)
def test_zero_where_nothing_counts_and_finite_elsewhere(name):
    arrays = batch(0)
    for output in jax.tree.leaves(reference()[name]):
        assert np.isfinite(output).all()
        if output.shape == (LENGTH,):
            np.testing.assert_array_equal(output[~arrays["action_mask"]], 0.0)
            assert np.any(output != 0)
        if output.shape == (NUM_TRAJECTORIES,):
            np.testing.assert_array_equal(output[~arrays["valid"]], 0.0)
            assert np.any(output != 0)


@pytest.mark.parametrize("name", NAMES)
def test_padding_inside_a_turn_changes_nothing(name):
    assert_trees_equal(gap_results()[name], reference()[name], atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_vmap_in_float64_equals_loop_in_float32(name):
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i], vmapped_double_results()[name])
        assert_trees_equal(one, reference(i)[name], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "three_spo"])
def test_float64_stays_float64(name):
    """Except where all that is computed with are counts."""
    for output in jax.tree.leaves(vmapped_double_results()[name]):
        assert output.dtype in (np.float64, np.int32)


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_flows(name):
    for gradient in jax.tree.leaves(gradients()[name]):
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@pytest.mark.parametrize("name", UNORDERED)
def test_order_of_trajectories_does_not_matter(name):
    """Reversed in the stream and in the arrays [N]."""
    arrays = batch(0)
    index = arrays["trajectory_index"]
    new = np.where(index >= 0, NUM_TRAJECTORIES - 1 - index, -1).astype(np.int32)
    order = np.argsort(np.where(new >= 0, new, 99), kind="stable")
    moved = {
        key: array[order] if key in PER_TOKEN else array[::-1] for key, array in arrays.items()
    }
    moved["trajectory_index"] = new[order]
    got, expected = compiled(moved)[name], reference()[name]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        b = b[order] if b.shape == (LENGTH,) else b[::-1]
        np.testing.assert_allclose(a, b, atol=2e-6)
