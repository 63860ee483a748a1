"""What holds for every regression: garbage, packing, jit, vmap, dtype, finite differences."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.objectives import bellman_bpo_exact, klpo, klpo_sequence, preference

VOCABULARY, N = 5, 5
KLPO = {"beta": 0.3}
TOPK = {"beta": 0.3, "tail_floor": 1e-6}
FUNCTIONS = {
    "token_full": (klpo.token_full, KLPO),
    "token_mc": (klpo.token_mc, KLPO),
    "token_topk": (klpo.token_topk, TOPK),
    "token_binary": (klpo.token_binary, KLPO),
    "sequence_full": (klpo_sequence.sequence_full, KLPO),
    "sequence_mc": (klpo_sequence.sequence_mc, KLPO),
    "sequence_topk": (klpo_sequence.sequence_topk, TOPK),
    "sequence_binary": (klpo_sequence.sequence_binary, KLPO),
    "bellman_bpo_exact": (bellman_bpo_exact.bellman_bpo_exact, {"eta": 2.0}),
    "rebel": (preference.rebel, {"eta": 2.0}),
    "sppo": (preference.sppo, {"eta": 2.0}),
    "gpo": (preference.gpo, KLPO),
}
LIVE = (
    "policy_logprobs",
    "aux_policy_logprobs",
    "topk_policy_logprobs",
    "full_policy_logprobs",
)
PER_TRAJECTORY = ("reward", "group", "preference")
NOT_FLOAT = ("action_mask", "trajectory_index", "group")
each = pytest.mark.parametrize("name", FUNCTIONS)


def make_batch(seed=0):
    """Packed [3, 8]: trajectory 1 spans two rows, 3 has no token to train, 4 does not exist."""
    rng = np.random.default_rng(seed)
    index = np.array([[0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 2, 2, 2, 2, -1, -1], [3, 3, 3] + [-1] * 5])
    mask = (rng.random(index.shape) < 0.7) & (index >= 0) & (index != 3)
    mask[0, 0] = mask[1, 0] = mask[1, 2] = True
    shape = (*index.shape, VOCABULARY)
    log_q = np.log(rng.dirichlet(np.ones(VOCABULARY), index.shape))
    log_p = np.asarray(jax.nn.log_softmax(log_q + rng.normal(size=shape) / 2))
    actions = rng.integers(VOCABULARY, size=(*index.shape, 1))
    draws = rng.integers(VOCABULARY, size=(*index.shape, 3))
    listed = np.argsort(-log_q, axis=-1)[..., :2]

    def take(rows, ids):
        return np.take_along_axis(rows, ids, axis=-1)

    advantages = rng.normal(size=N)[np.maximum(index, 0)]
    batch = {
        "policy_logprobs": take(log_p, actions)[..., 0],
        "rollout_logprobs": take(log_q, actions)[..., 0],
        "advantages": advantages,
        "keep": rng.random(index.shape),
        "action_mask": mask,
        "trajectory_index": index.astype(np.int32),
        "aux_policy_logprobs": take(log_p, draws),
        "aux_rollout_logprobs": take(log_q, draws),
        "topk_policy_logprobs": take(log_p, listed),
        "topk_rollout_logprobs": take(log_q, listed),
        "full_policy_logprobs": log_p,
        "full_rollout_logprobs": log_q,
        "reward": np.array([1.0, -0.5, 0.3, 0.0, 0.0]),
        "group": np.array([0, 1, 0, 0, 0], np.int32),
        "preference": np.array([0.9, 0.2, 0.5, 0.0, 0.0]),
    }
    return {k: x if k in NOT_FLOAT else x.astype(np.float32) for k, x in batch.items()}


def dirty(batch, garbage):
    """The same batch with garbage wherever nothing counts."""
    trained = np.isin(np.arange(N), batch["trajectory_index"][batch["action_mask"]])
    result = dict(batch)
    for name, x in batch.items():
        if name not in NOT_FLOAT:
            counts = trained if name in PER_TRAJECTORY else batch["action_mask"]
            counts = counts.reshape(counts.shape + (1,) * (x.ndim - counts.ndim))
            result[name] = np.where(counts, x, np.float32(garbage))
    return result


def call(name, batch, num_trajectories=N):
    function, settings = FUNCTIONS[name]
    available = batch | {"num_trajectories": num_trajectories}
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return function(*(available[n] for n in names), **settings)


@functools.lru_cache
def compiled(name):
    """Of a batch: (total loss, (per token, weights, metrics)) and gradients for all floats."""

    @jax.jit
    def evaluate(batch):
        fixed = {k: batch[k] for k in NOT_FLOAT}

        def loss(floats):
            per_token, weights, metrics = call(name, floats | fixed)
            return jnp.sum(per_token), (per_token, weights, metrics)

        floats = {k: x for k, x in batch.items() if k not in NOT_FLOAT}
        return jax.value_and_grad(loss, has_aux=True)(floats)

    return evaluate


@each
def test_garbage_where_nothing_counts_is_bit_identical(name):
    before = compiled(name)(make_batch())
    for garbage in (np.nan, np.inf, -np.inf, 3e38):
        after = compiled(name)(dirty(make_batch(), garbage))
        jax.tree.map(np.testing.assert_array_equal, after, before)
    (_, (per_token, weights, _)), gradients = before
    off = ~make_batch()["action_mask"]
    for array in (per_token, weights, *(gradients[k] for k in LIVE)):
        np.testing.assert_array_equal(np.asarray(array)[off], 0.0)


@each
def test_only_log_probs_of_the_policy_carry_a_gradient(name):
    (_, (_, weights, _)), gradients = compiled(name)(make_batch())
    for array, gradient in gradients.items():
        if array not in LIVE:
            np.testing.assert_array_equal(gradient, np.zeros_like(gradient))
    assert np.abs(gradients["policy_logprobs"]).max() > 0.01
    batch = make_batch()
    np.testing.assert_array_equal(weights, np.where(batch["action_mask"], batch["keep"], 0.0))


@each
def test_nan_on_a_trained_token_surfaces(name):
    for array in ("policy_logprobs", "rollout_logprobs"):
        batch = make_batch()
        batch[array][0, 0] = np.nan
        (loss, _), _ = compiled(name)(batch)
        assert np.isnan(loss)


@each
def test_low_precision_is_raised(name):
    low = {k: x if k in NOT_FLOAT else x.astype(jnp.bfloat16) for k, x in make_batch().items()}
    outputs = jax.eval_shape(functools.partial(call, name), low)
    assert {x.dtype for x in jax.tree.leaves(outputs)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "name", ["token_topk", "token_mc", "sequence_mc", "sequence_full", "bellman_bpo_exact", "rebel"]
)
def test_vmap_over_flat_streams_is_one_packed_batch_after_the_other(name):
    batches = [make_batch(seed) for seed in (1, 2)]
    stacked = {
        k: np.stack([b[k] if k in PER_TRAJECTORY else _flat(b[k]) for b in batches])
        for k in batches[0]
    }
    (losses, (per_token, weights, metrics)), gradients = jax.vmap(compiled(name))(stacked)
    got = losses, per_token, weights, gradients["policy_logprobs"], metrics
    for row, batch in enumerate(batches):
        (loss, (per_token, weights, metrics)), gradients = compiled(name)(batch)
        per_token = (per_token, weights, gradients["policy_logprobs"])
        expected = (loss, *map(_flat, per_token), metrics)
        jax.tree.map(
            lambda x, y, row=row: np.testing.assert_allclose(x[row], y, rtol=1e-5, atol=1e-6),
            got,
            expected,
        )


def _flat(x):
    return x.reshape(-1, *x.shape[2:])


@each
def test_trajectories_do_not_see_each_other(name):
    """REBEL's see the others of their group."""
    batch = make_batch()
    (_, (per_token, _, _)), gradients = compiled(name)(batch)
    for members in ([0, 2], [1]):
        chosen = np.isin(batch["trajectory_index"], members)
        alone = batch | {"action_mask": batch["action_mask"] & chosen}
        (_, (got, _, _)), got_gradients = compiled(name)(dirty(alone, np.nan))
        np.testing.assert_array_equal(np.asarray(got)[chosen], np.asarray(per_token)[chosen])
        for array in LIVE:
            kept = np.asarray(gradients[array])[chosen]
            np.testing.assert_array_equal(np.asarray(got_gradients[array])[chosen], kept)


SURROGATES = ("token_", "sequence_")  # their value is not the loss whose gradient they have


@each
def test_a_dropped_token_is_as_one_outside_the_mask(name):
    """The losses of preferences share a trajectory's loss by its tokens, dropped or not."""
    batch = make_batch()
    batch["keep"][1, 2] = batch["keep"][0, 0] = 0.0
    outside = batch | {"action_mask": batch["action_mask"] & (batch["keep"] > 0)}
    (loss, _), gradients = compiled(name)(batch)
    (expected, _), expected_gradients = compiled(name)(outside)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for array in LIVE:
        np.testing.assert_allclose(
            gradients[array], expected_gradients[array], rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if not n.startswith(SURROGATES)])
def test_gradients_are_finite_differences(name):
    with jax.enable_x64(True):
        batch = {k: x if k in NOT_FLOAT else np.float64(x) for k, x in make_batch().items()}
        _, gradients = compiled(name)(batch)
        rng = np.random.default_rng(0)
        direction = {k: rng.normal(size=batch[k].shape) for k in LIVE}

        def at(step):
            return compiled(name)(batch | {k: batch[k] + step * direction[k] for k in LIVE})[0][0]

        slope = (at(1e-5) - at(-1e-5)) / 2e-5
        expected = sum(np.sum(gradients[k] * direction[k]) for k in LIVE)
        np.testing.assert_allclose(slope, expected, rtol=1e-7)
