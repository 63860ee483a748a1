"""The arrays that the parts of an algorithm may read, by name.

Arrays per token may have any shape ([T], [B, T], [M, B, T]), as long as their row-major order is
the order of the token stream. Where the mask is False they may hold anything, NaN included.
Optional arrays are None when the batch does not hold them.
"""

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AdvantageArrays:
    """What an advantage may read, over the whole batch.

    Per token:
      rewards: on action tokens.
      action_mask: bool.
      trajectory_index: i32, 0..N-1 and -1 on padding; trajectories are contiguous.
      values: of the prefix before the token.
      turn_ids: i32, rises by one at each turn of a trajectory.
      token_index: i32, place of the token in its trajectory.
      log_ratio: log(policy / rollout) before the update.
      state_key: i32, number of the environment's state in which the token's turn was taken.

    Per trajectory [N]:
      reward: sum of the trajectory's rewards.
      group: i32, trajectories that share a number were sampled for the same task together.
      task: i32, number of the task, the same in every batch.
      valid: bool, False on padding trajectories.
      bootstrap_values: the value after the last token, 0 where terminated.
      prompt_value: value of the task's prompt, as the caller estimates it.
      parent: i32, the trajectory that it was forked from, -1 for one that was not.
      fork_index: i32, its first own token, counted within the trajectory; 0 without a parent.
      gold_logprobs: [N, G] mean log-prob of the right answer at each boundary between turns.
      num_boundaries: i32, how many entries of gold_logprobs count.
    """

    rewards: jax.Array
    action_mask: jax.Array
    trajectory_index: jax.Array
    reward: jax.Array
    group: jax.Array
    valid: jax.Array
    task: jax.Array | None = None
    values: jax.Array | None = None
    bootstrap_values: jax.Array | None = None
    turn_ids: jax.Array | None = None
    token_index: jax.Array | None = None
    log_ratio: jax.Array | None = None
    state_key: jax.Array | None = None
    prompt_value: jax.Array | None = None
    parent: jax.Array | None = None
    fork_index: jax.Array | None = None
    gold_logprobs: jax.Array | None = None
    num_boundaries: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyArrays:
    """What a policy loss may read: of a micro-batch, or of all that enters one update.

    Per token:
      policy_logprobs: of the current weights; the gradient flows through them.
      policy_entropies: nats, of the current weights.
      rollout_logprobs: as recorded by the sampler.
      entropies: nats, as recorded by the sampler.
      advantages: from `update.advantages`.
      loss_mask: bool, the tokens to train.
      trajectory_index: i32, as in AdvantageArrays.
      trajectory_lengths: float, from `update.reduction_inputs`.
      turn_ids: i32.
      proximal_logprobs: recomputed by the trainer before the first update on the batch.
      ref_logprobs: of the frozen reference policy.
      aux_policy_logprobs, aux_rollout_logprobs: [..., M], of the auxiliary draws.
      topk_policy_logprobs, topk_rollout_logprobs: [..., K], of the sampler's K likeliest tokens.
      full_policy_logprobs, full_rollout_logprobs: [..., V], whole rows.

    Per trajectory [N]:
      reward, group, valid, prompt_value: as in AdvantageArrays.
      preference: probability or score that the response is preferred.

    Scalar:
      denominator: from `update.reduction_inputs`, of all that enters the update.
    """

    policy_logprobs: jax.Array
    policy_entropies: jax.Array
    rollout_logprobs: jax.Array
    entropies: jax.Array
    advantages: jax.Array
    loss_mask: jax.Array
    trajectory_index: jax.Array
    trajectory_lengths: jax.Array
    denominator: jax.Array
    reward: jax.Array
    group: jax.Array
    valid: jax.Array
    turn_ids: jax.Array | None = None
    proximal_logprobs: jax.Array | None = None
    ref_logprobs: jax.Array | None = None
    aux_policy_logprobs: jax.Array | None = None
    aux_rollout_logprobs: jax.Array | None = None
    topk_policy_logprobs: jax.Array | None = None
    topk_rollout_logprobs: jax.Array | None = None
    full_policy_logprobs: jax.Array | None = None
    full_rollout_logprobs: jax.Array | None = None
    prompt_value: jax.Array | None = None
    preference: jax.Array | None = None


# What a model makes of its parameters: the loss is a function of these, and of nothing else that
# depends on them.
DIFFERENTIABLE = (
    "policy_logprobs",
    "policy_entropies",
    "aux_policy_logprobs",
    "topk_policy_logprobs",
    "full_policy_logprobs",
)

PER_TRAJECTORY = frozenset(
    (
        "reward",
        "group",
        "task",
        "valid",
        "bootstrap_values",
        "prompt_value",
        "parent",
        "fork_index",
        "gold_logprobs",
        "num_boundaries",
        "preference",
    )
)


def held(arrays: AdvantageArrays | PolicyArrays) -> dict[str, jax.Array]:
    """The arrays by name, without those that are None."""
    named = {field.name: getattr(arrays, field.name) for field in dataclasses.fields(arrays)}
    return {name: array for name, array in named.items() if array is not None}
