"""Rows composed into advantages and losses, against an independent numpy version."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_single.algorithms import arrays as arrays_lib
from jaxrl_single.algorithms import diagnostics, parts, table, update
from jaxrl_single.metrics import names

N, ROWS, LENGTH = 6, 4, 16
ROW_NAMES = ("sao", "reinforce", "grpo")
ROW_OF = {name: functools.partial(table.get, name) for name in ROW_NAMES}
GARBAGE = (np.nan, np.inf, -np.inf, 3e38)


def make_batch(seed=0):
    """A packed [ROWS, LENGTH] batch: 5 trajectories, one spans two rows, and one empty slot."""
    rng = np.random.default_rng(seed)
    index = np.repeat([0, 0, 1, 2, 3, 3, 4, -1], 8).reshape(ROWS, LENGTH).astype(np.int32)
    index[3, 5:8] = -1  # trajectory 4 is shorter: padding in front of the padding
    action_mask = (rng.random((ROWS, LENGTH)) < 0.6) & (index >= 0)
    loss_mask = action_mask & (index != 2)  # as with on_limit = mask
    rollout = -rng.exponential(size=(ROWS, LENGTH))
    return {
        "index": index,
        "action_mask": action_mask,
        "loss_mask": loss_mask,
        "rewards": rng.normal(size=(ROWS, LENGTH)).astype(np.float32),
        "values": rng.normal(size=(ROWS, LENGTH)).astype(np.float32),
        "bootstraps": np.array([0, 0.4, 0, -0.3, 0, 0], np.float32),
        "reward": np.array([1, 0, 0.5, 1, -1, np.nan], np.float32),
        "group": np.array([0, 0, 0, 1, 1, 1], np.int32),
        "valid": np.array([1, 1, 1, 1, 1, 0], bool),
        "rollout": rollout.astype(np.float32),
        "policy": np.minimum(rollout + rng.normal(size=rollout.shape), -1e-3).astype(np.float32),
        "entropies": rng.random((ROWS, LENGTH)).astype(np.float32),
        "policy_entropies": rng.random((ROWS, LENGTH)).astype(np.float32),
    }


def advantage_arrays(batch):
    return arrays_lib.AdvantageArrays(
        rewards=batch["rewards"],
        action_mask=batch["action_mask"],
        trajectory_index=batch["index"],
        reward=batch["reward"],
        group=batch["group"],
        valid=batch["valid"],
        values=batch["values"],
        bootstrap_values=batch["bootstraps"],
    )


def policy_arrays(algorithm, batch, advantages):
    lengths, denominator = update.reduction_inputs(algorithm, batch["loss_mask"], batch["index"], N)
    return arrays_lib.PolicyArrays(
        policy_logprobs=batch["policy"],
        policy_entropies=batch["policy_entropies"],
        rollout_logprobs=batch["rollout"],
        entropies=batch["entropies"],
        advantages=advantages,
        loss_mask=batch["loss_mask"],
        trajectory_index=batch["index"],
        trajectory_lengths=lengths,
        denominator=denominator,
        reward=batch["reward"],
        group=batch["group"],
        valid=batch["valid"],
    )


@functools.partial(jax.jit, static_argnums=0)
def whole_update(name, batch):
    """Advantages, returns, loss, score coefficients and metrics of one batch."""
    algorithm = table.get(name)
    output = update.advantages(algorithm, advantage_arrays(batch), {})
    arrays = policy_arrays(algorithm, batch, output.advantages)
    coefficients, loss, aux = update.score_coefficients(algorithm, arrays, {})
    of_token = coefficients["policy_logprobs"]
    return output.advantages, output.returns, loss, of_token, aux.metrics


@functools.partial(jax.jit, static_argnums=0)
def micro_update(algorithm_of, arrays):
    """Loss, score coefficients and metrics of one micro-batch; algorithm_of() gives the row."""
    algorithm = algorithm_of()
    coefficients, loss, aux = update.score_coefficients(algorithm, arrays, {})
    return loss, coefficients["policy_logprobs"], aux.metrics


def independent_gae(batch, lambda_of_length):
    advantages = np.zeros((ROWS, LENGTH)).reshape(-1)
    flat = {key: batch[key].reshape(-1) for key in ("index", "action_mask", "rewards", "values")}
    for i in range(N):
        steps = np.flatnonzero(flat["action_mask"] & (flat["index"] == i))
        lambda_ = lambda_of_length(max(len(steps), 1))
        value, advantage = float(batch["bootstraps"][i]), 0.0
        for t in steps[::-1]:
            delta = flat["rewards"][t] + value - flat["values"][t]
            advantages[t] = advantage = delta + lambda_ * advantage
            value = float(flat["values"][t])
    return advantages.reshape(ROWS, LENGTH)


def independent(name, batch):
    """Float64: advantages and the coefficient of each token's score."""
    index, loss_mask, action_mask = batch["index"], batch["loss_mask"], batch["action_mask"]
    ratio = np.exp(batch["policy"].astype(np.float64) - batch["rollout"])
    reward = batch["reward"].astype(np.float64)
    lengths = np.array([np.sum(loss_mask & (index == i)) for i in range(N)])
    if name == "sao":
        advantages = independent_gae(batch, lambda length: max(0.0, 1 - 1 / (1.5 * length)))
        weight = np.where((ratio > 0.7) & (ratio < 6.0), ratio, 0.0) / lengths.sum()
    elif name == "reinforce":
        per_trajectory = reward - reward[:5].mean()
        advantages = np.where(action_mask, per_trajectory[index], 0.0)
        weight = ratio / lengths.sum()
    else:
        groups = [reward[:3], reward[3:5]]
        per_trajectory = np.concatenate([(g - g.mean()) / (g.std() + 1e-6) for g in groups])
        advantages = np.where(action_mask, np.append(per_trajectory, 0.0)[index], 0.0)
        clipped = ((advantages > 0) & (ratio > 1.2)) | ((advantages < 0) & (ratio < 0.8))
        per_token = lengths[index] * np.sum(lengths > 0)
        weight = np.where(clipped, 0.0, ratio) / np.maximum(per_token, 1)
    return advantages, np.where(loss_mask, weight * advantages, 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ROW_NAMES)
def test_advantages_and_coefficients_equal_the_independent_version(name, seed):
    batch = make_batch(seed)
    advantages, coefficients = independent(name, batch)
    got = whole_update(name, batch)
    np.testing.assert_allclose(got[0], advantages, atol=1e-5)
    np.testing.assert_allclose(got[3], coefficients, atol=2e-6)


def test_sao_golden_loss_gradient_and_metrics():
    """Ratios .8, 1.5 and 10 (dropped, stays in the denominator), advantages 1, -.5, 2."""
    arrays = arrays_lib.PolicyArrays(
        policy_logprobs=np.log(np.float32([0.4, 0.3, 0.5])),
        policy_entropies=np.ones(3, np.float32),
        rollout_logprobs=np.log(np.float32([0.5, 0.2, 0.05])),
        entropies=np.float32([0.1, 0.3, 2.0]),
        advantages=np.float32([1.0, -0.5, 2.0]),
        loss_mask=np.ones(3, bool),
        trajectory_index=np.zeros(3, np.int32),
        trajectory_lengths=np.full(3, 3.0, np.float32),
        denominator=np.float32(3.0),
        reward=np.ones(1, np.float32),
        group=np.zeros(1, np.int32),
        valid=np.ones(1, bool),
    )
    loss, coefficients, metrics = micro_update(ROW_OF["sao"], arrays)
    np.testing.assert_allclose(loss, -0.056649005915, rtol=1e-6)
    np.testing.assert_allclose(coefficients, [0.8 / 3, -0.25, 0.0], rtol=1e-6)
    means = diagnostics.means(metrics)
    np.testing.assert_allclose(means["keep/fraction"], 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(means["keep/entropy_masked"], 2.0, rtol=1e-6)
    np.testing.assert_allclose(means["policy/weight_mean"], 2.3 / 3, rtol=1e-6)


def test_sao_returns_are_the_critic_targets():
    batch = make_batch()
    expected = independent_gae(batch, lambda length: 1.0) + batch["values"]
    np.testing.assert_allclose(
        whole_update("sao", batch)[1], np.where(batch["action_mask"], expected, 0.0), atol=1e-5
    )


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", ROW_NAMES)
def test_anything_under_the_masks_leaves_everything_bit_identical(name, garbage):
    clean = make_batch()
    dirty = {key: np.copy(value) for key, value in clean.items()}
    for key in ("rewards", "values"):
        dirty[key][~clean["action_mask"]] = garbage
    for key in ("policy", "rollout", "entropies", "policy_entropies"):
        dirty[key][~clean["loss_mask"]] = garbage
    dirty["reward"][~clean["valid"]] = garbage
    dirty["group"][~clean["valid"]] = 0
    outputs = (jax.tree.leaves(whole_update(name, batch)) for batch in (clean, dirty))
    for before, after in zip(*outputs, strict=True):
        np.testing.assert_array_equal(after, before)
        assert np.isfinite(before).all()


@pytest.mark.parametrize("name", ROW_NAMES)
def test_flat_or_micro_batched_equals_packed(name):
    batch = make_batch()
    packed = whole_update(name, batch)
    shape = (2, ROWS // 2, LENGTH) if name == "sao" else (ROWS * LENGTH,)
    shaped = {
        key: value.reshape(shape) if value.ndim == 2 else value for key, value in batch.items()
    }
    for ours, theirs in zip(packed[:4], whole_update(name, shaped)[:4], strict=True):
        np.testing.assert_allclose(np.reshape(theirs, np.shape(ours)), ours, atol=1e-6)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 3)])
@pytest.mark.parametrize("name", ROW_NAMES)
def test_loss_gradient_and_metrics_do_not_depend_on_the_split(name, sizes):
    batch, algorithm = make_batch(), table.get(name)
    advantages, _, loss, coefficients, metrics = whole_update(name, batch)
    arrays = jax.tree.map(np.asarray, policy_arrays(algorithm, batch, advantages))
    total, start, shares, pairs = 0.0, 0, [], []
    for size in sizes:
        rows = slice(start, start + size)
        micro = jax.tree.map(lambda x, rows=rows: x[rows] if np.ndim(x) == 2 else x, arrays)
        part, part_coefficients, part_metrics = micro_update(ROW_OF[name], micro)
        shares.append(part_coefficients)
        pairs.append(part_metrics)
        total, start = total + part, start + size
    np.testing.assert_allclose(total, loss, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(shares), coefficients, rtol=1e-5, atol=1e-8)
    added = diagnostics.means(jax.tree.map(lambda *xs: sum(map(np.asarray, xs)), *pairs))
    for key, value in diagnostics.means(metrics).items():
        np.testing.assert_allclose(added[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ROW_NAMES)
def test_nothing_to_train(name):
    batch = make_batch() | {"loss_mask": np.zeros((ROWS, LENGTH), bool)}
    _, _, loss, coefficients, metrics = whole_update(name, batch)
    assert loss == 0.0
    np.testing.assert_array_equal(coefficients, np.zeros((ROWS, LENGTH)))
    assert all(np.isfinite(x) for pair in metrics.values() for x in pair)


@pytest.mark.parametrize("name", ROW_NAMES)
def test_metrics_are_scalars_with_listed_names(name):
    *_, metrics = whole_update(name, make_batch())
    for key, (total, weight) in metrics.items():
        names.check(key)
        assert total.shape == weight.shape == ()
        assert total.dtype == weight.dtype == jnp.float32


@pytest.mark.parametrize(
    ("reduction", "size", "expected"),
    [("token_mean", 0, 5.0), ("sequence_mean", 0, 2.0), ("fixed_length", 10, 20.0)],
)
def test_reduction_inputs_count_only_what_is_trained(reduction, size, expected):
    """Trajectory 1 is masked out of the loss: neither its tokens nor itself are counted."""
    algorithm = table.get("sao", {"reduction": reduction, "fixed_length": size})
    index = np.array([[0, 0, 0, 1, 1], [2, 2, 2, 2, -1]])
    mask = np.array([[1, 1, 0, 0, 0], [1, 0, 1, 1, 1]], bool)
    function = functools.partial(update.reduction_inputs, algorithm, num_trajectories=3)
    lengths, denominator = jax.jit(function)(mask, index)
    assert denominator == expected
    np.testing.assert_array_equal(lengths, [[2, 2, 2, 0, 0], [3, 3, 3, 3, 0]])


def test_row_without_values_says_what_is_missing():
    arrays = dataclasses.replace(advantage_arrays(make_batch()), values=None)
    with pytest.raises(ValueError, match=r"advantage \(critic_gae\) reads \['values'\].*'rewards'"):
        update.advantages(table.get("sao"), arrays, {})
    assert update.advantages(table.get("reinforce"), arrays, {}).returns.sum() == 0.0


def proximal_row():
    return table.get("sao", {"ratio_reference": "proximal"})


def corrected_row():
    return dataclasses.replace(table.get("sao"), correction=parts.Part(half))


def half(action_mask):
    return 0.5 * action_mask


def test_proximal_reference_changes_the_objective_but_not_the_keep_rule():
    batch = make_batch()
    advantages = independent("sao", batch)[0].astype(np.float32)
    arrays = policy_arrays(proximal_row(), batch, advantages)
    with pytest.raises(ValueError, match=r"'sao': ratio_reference .* no proximal_logprobs"):
        micro_update(proximal_row, arrays)
    arrays = dataclasses.replace(arrays, proximal_logprobs=batch["policy"])
    ratio = np.exp(batch["policy"] - batch["rollout"])
    expected = np.where(batch["loss_mask"] & (ratio > 0.7) & (ratio < 6.0), advantages, 0.0)
    np.testing.assert_allclose(
        micro_update(proximal_row, arrays)[1], expected / batch["loss_mask"].sum(), atol=1e-6
    )


def test_correction_multiplies_the_weight():
    batch = make_batch()
    advantages, expected = independent("sao", batch)
    arrays = policy_arrays(corrected_row(), batch, advantages.astype(np.float32))
    np.testing.assert_allclose(micro_update(corrected_row, arrays)[1], expected / 2, atol=2e-6)


def counted_baseline_init(num_tasks, *, start):
    return {"count": jnp.full(num_tasks, start)}


def counted_baseline(state, reward, task, valid, *, scale):
    """A stateful advantage: reward less the number of earlier visits of the task."""
    count = state["count"].at[task].add(valid)
    return jnp.where(valid, scale * (reward - state["count"][task]), 0.0), {"count": count}


@pytest.mark.parametrize("name", ["spo", "running_mean", "estr", "three_spo"])
def test_the_first_state_has_the_types_of_the_later_ones(name):
    """jnp.full(n, 1.0) is weakly typed; an update that returns another type compiles once more."""
    state = update.init_state(table.get(name), num_tasks=4)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    assert jax.tree.leaves(state)


def test_state_of_a_stateful_advantage_moves_on_with_each_batch():
    part = parts.Part(
        counted_baseline, {"scale": 2.0, "start": 3.0}, per="trajectory", init=counted_baseline_init
    )
    algorithm = dataclasses.replace(table.get("reinforce"), advantage=part)
    assert update.init_state(table.get("reinforce"), num_tasks=4) == {}
    state = update.init_state(algorithm, num_tasks=4)
    batch = make_batch()
    task = np.array([0, 1, 2, 3, 0, 0], np.int32)
    arrays = dataclasses.replace(advantage_arrays(batch), task=task)
    first = update.advantages(algorithm, arrays, state)
    np.testing.assert_array_equal(first.state["advantage"]["count"], [5.0, 4.0, 4.0, 4.0])
    expected = 2.0 * (batch["reward"][:5] - 3.0)
    inside = batch["action_mask"] & (batch["index"] >= 0)
    np.testing.assert_allclose(first.advantages[inside], expected[batch["index"][inside]])
    loss_arrays = policy_arrays(algorithm, batch, first.advantages)
    after = update.policy_loss(algorithm, loss_arrays, first.state)[1].state
    np.testing.assert_array_equal(after["advantage"]["count"], [5.0, 4.0, 4.0, 4.0])
