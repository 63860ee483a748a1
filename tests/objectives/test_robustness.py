"""What every loss per token must do under jit: garbage, vmap, packing, precision, gradients."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import bellman_bpo, cispo, gspo, ppo_clip, sao, score, terms

OBJECTIVES = {
    "score": score.score,
    "sao": sao.sao,
    "ppo_clip": functools.partial(ppo_clip.ppo_clip, low=0.2, high=0.28),
    "gspo": functools.partial(gspo.gspo, low=0.05, high=0.1),
    "cispo": functools.partial(cispo.cispo, low=0.5, high=0.3),
    "bellman_bpo": functools.partial(bellman_bpo.bellman_bpo, eps=0.1, cap=1.1),
}
TERMS = {
    "positive_nll": terms.positive_nll,
    "reference_kl": terms.reference_kl,
    "entropy_bonus": terms.entropy_bonus,
}
ALL = OBJECTIVES | TERMS
# Without a stop-gradient between the loss and its log-probs.
DIFFERENTIABLE = {name: ALL[name] for name in ("ppo_clip", "gspo", *TERMS)}

LENGTHS = (5, 1, 9, 6)
NUM_TRAJECTORIES = len(LENGTHS) + 1  # the last one is padding: no token is its own
NUM_PADDING = 3
GARBAGE = (np.nan, np.inf, -np.inf, 3e38, -1e4)
PER_TOKEN_FLOATS = (
    "policy_logprobs",
    "rollout_logprobs",
    "ref_logprobs",
    "policy_entropies",
    "advantages",
    "keep",
)


def stream(seed=0):
    """Arrays of a packed batch by name; policy and rollout differ by about 0.3 nats."""
    rng = np.random.default_rng(seed)
    index = np.repeat([*range(len(LENGTHS)), -1], [*LENGTHS, NUM_PADDING]).astype(np.int32)
    size = len(index)
    mask = (rng.random(size) < 0.8) & (index >= 0)
    mask[[0, 5, 6, 15]] = True  # each trajectory has an action
    rollout = np.log(rng.uniform(0.05, 0.9, size))
    return {
        "rollout_logprobs": rollout,
        "policy_logprobs": np.minimum(rollout + rng.normal(scale=0.3, size=size), -0.01),
        "ref_logprobs": np.minimum(rollout + rng.normal(scale=0.3, size=size), -0.01),
        "policy_entropies": rng.uniform(0.0, 3.0, size),
        "advantages": rng.normal(size=size),
        "keep": rng.choice([0.0, 0.5, 1.0], size=size),
        "action_mask": mask,
        "trajectory_index": index,
        "reward": np.array([1.0, -1.0, 0.5, 0.0, 0.0]),
    }


def as_float32(arrays):
    return {name: x.astype(np.float32) if x.dtype == float else x for name, x in arrays.items()}


def shared_by_trajectory(arrays):
    """With one advantage for all tokens of a trajectory, and nothing dropped."""
    advantages = np.array([0.7, -1.2, -0.4, 1.5, 0.0])[arrays["trajectory_index"]]
    return arrays | {"advantages": advantages, "keep": np.ones(advantages.shape)}


@functools.cache
def compiled(name):
    """Jitted: arrays by name to (outputs, gradient of the summed loss to what carries one)."""
    return jax.jit(functools.partial(evaluate, name), static_argnames="num_trajectories")


def evaluate(name, arrays, *, num_trajectories=NUM_TRAJECTORIES):
    names = reads(name)
    carrier = "policy_entropies" if "policy_entropies" in names else "policy_logprobs"

    def total(carried):
        given = arrays | {carrier: carried, "num_trajectories": num_trajectories}
        outputs = ALL[name](*(given[field] for field in names))
        return jnp.sum(outputs[0]), outputs

    return jax.grad(total, has_aux=True)(arrays[carrier])


def reads(name):
    parameters = inspect.signature(ALL[name]).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def assert_trees_equal(actual, expected):
    for got, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", ALL)
def test_garbage_under_the_mask_is_bit_identical(name):
    arrays = as_float32(stream())
    clean = compiled(name)(arrays)
    gradient, (per_token, *_) = clean
    off = ~arrays["action_mask"]
    np.testing.assert_array_equal(per_token[off], 0.0)
    np.testing.assert_array_equal(gradient[off], 0.0)
    assert np.any(gradient != 0.0)
    for garbage in GARBAGE:
        dirty = {
            field: np.where(off, np.float32(garbage), x) if field in PER_TOKEN_FLOATS else x
            for field, x in arrays.items()
        }
        dirty["reward"] = arrays["reward"].copy()
        dirty["reward"][-1] = garbage  # no token belongs to it
        assert_trees_equal(compiled(name)(dirty), clean)


@pytest.mark.parametrize("name", ALL)
def test_nothing_to_train_gives_zeros(name):
    arrays = as_float32(stream())
    arrays["action_mask"] = np.zeros_like(arrays["action_mask"])
    outputs = compiled(name)(arrays)
    for leaf in jax.tree.leaves(outputs):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


@pytest.mark.parametrize("name", ALL)
def test_nan_on_a_trained_token_surfaces(name):
    arrays = as_float32(stream())
    for field in ("policy_logprobs", "policy_entropies"):
        arrays[field] = arrays[field].copy()
        arrays[field][0] = np.nan
    _, (per_token, *_) = compiled(name)(arrays)
    assert np.isnan(per_token[0])


@pytest.mark.parametrize("name", ALL)
def test_rows_of_any_shape_are_the_same_stream(name):
    arrays = as_float32(stream())
    gradient, (per_token, *rest) = compiled(name)(arrays)
    rows = {field: x.reshape(2, 3, 4) if field != "reward" else x for field, x in arrays.items()}
    row_gradient, (row_per_token, *row_rest) = compiled(name)(rows)
    np.testing.assert_allclose(row_gradient.reshape(-1), gradient, rtol=1e-6)
    np.testing.assert_allclose(row_per_token.reshape(-1), per_token, rtol=1e-6)
    for got, wanted in zip(jax.tree.leaves(row_rest), jax.tree.leaves(rest), strict=True):
        np.testing.assert_allclose(got.reshape(-1), wanted.reshape(-1), rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_packed_equals_each_trajectory_alone(name):
    arrays = as_float32(stream())
    gradient, (per_token, rest, *_) = compiled(name)(arrays)
    for trajectory in range(len(LENGTHS)):
        mine = arrays["trajectory_index"] == trajectory
        alone = {
            field: pad(x[mine], fill=field) for field, x in arrays.items() if field != "reward"
        }
        alone["reward"] = arrays["reward"][trajectory : trajectory + 1]
        own_gradient, (own_per_token, own_rest, *_) = compiled(name)(alone, num_trajectories=1)
        size = np.sum(mine)
        np.testing.assert_allclose(own_gradient[:size], gradient[mine], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(own_per_token[:size], per_token[mine], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(own_rest[:size], rest[mine], rtol=1e-5, atol=1e-7)


def pad(x, *, fill):
    """The tokens of one trajectory in a row of the longest one's length, with index 0."""
    rest = max(LENGTHS) - len(x)
    if fill == "trajectory_index":
        return np.pad(np.zeros_like(x), (0, rest), constant_values=-1)
    return np.pad(x, (0, rest), constant_values=False if fill == "action_mask" else np.nan)


@pytest.mark.parametrize("name", ALL)
def test_vmap_over_batches_equals_each_batch(name):
    batches = [as_float32(stream(seed)) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *batches)
    mapped = jax.jit(jax.vmap(functools.partial(evaluate, name)))(stacked)
    for place, batch in enumerate(batches):
        one = jax.tree.map(lambda x, place=place: x[place], mapped)
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(compiled(name)(batch)), strict=True)
        for got, wanted in pairs:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_is_float32_at_least_and_float64_where_given(name):
    arrays = as_float32(stream())
    half = {
        field: x.astype(jnp.bfloat16) if field in PER_TOKEN_FLOATS else x
        for field, x in arrays.items()
    }
    per_token, *_ = jax.eval_shape(functools.partial(evaluate, name), half)[1]
    assert per_token.dtype == jnp.float32
    with jax.enable_x64(True):
        per_token, *_ = jax.eval_shape(functools.partial(evaluate, name), stream())[1]
    assert per_token.dtype == jnp.float64


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_is_minus_weight_times_advantage(name):
    arrays = as_float32(stream())
    gradient, (_, weights, metrics) = compiled(name)(arrays)
    np.testing.assert_allclose(gradient, -weights * arrays["advantages"], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(weights[(arrays["keep"] == 0) | ~arrays["action_mask"]], 0.0)
    for total, weight in metrics.values():
        assert np.shape(total) == np.shape(weight) == ()
    if "policy/clip_fraction" in metrics:
        assert 0 < metrics["policy/clip_fraction"][0] < np.sum(arrays["action_mask"])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_weights_and_metrics_are_stop_gradient(name):
    arrays = as_float32(stream())

    def total(arrays):
        _, (_, weights, metrics) = evaluate(name, arrays)
        return jnp.sum(weights) + sum(jnp.sum(x) for x in jax.tree.leaves(metrics))

    floats = {field: arrays[field] for field in PER_TOKEN_FLOATS}
    gradients = jax.jit(jax.grad(lambda floats: total(arrays | floats)))(floats)
    for field in PER_TOKEN_FLOATS:
        np.testing.assert_array_equal(gradients[field], 0.0, err_msg=field)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_equals_finite_differences_in_float64(name):
    arrays, step = shared_by_trajectory(stream()), 1e-6
    carrier = "policy_entropies" if name == "entropy_bonus" else "policy_logprobs"
    with jax.enable_x64(True):
        gradient, (per_token, *_) = compiled(name)(arrays)
        slopes = np.zeros(len(gradient))
        for token in range(len(gradient)):
            sums = []
            for sign in (1.0, -1.0):
                moved = arrays[carrier].copy()
                moved[token] += sign * step
                _, (per_token, *_) = compiled(name)(arrays | {carrier: moved})
                sums.append(np.sum(per_token))
            slopes[token] = (sums[0] - sums[1]) / (2 * step)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-9)
