"""TokenBatch: what one train step reads, as a pytree of arrays with static shapes.

Letters: M micro-batches, B rows of a micro-batch, T tokens of a row, N trajectories.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

Array = Any  # numpy on the host, jax.Array on the device; the same class serves both

PADDING = -1  # trajectory_index of tokens that belong to nobody


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenBatch:
    """Packed rows, left-aligned, and facts about each trajectory.

    Reading the tokens row by row (all of micro-batch 0, then 1, ...) gives the *stream*: the tokens
    of a trajectory follow one another in it, trajectories come in any order, and padding may lie
    between. Recursions (advantages) run over the stream; attention and
    positions are bounded by `segment_ids`. A trajectory may own several segments.

    Per token [M, B, T] (a micro-batch taken by `micro_batch` has [B, T]):
      tokens: i32.
      positions: i32, 0, 1, ... within the segment.
      segment_ids: i32, 0 = padding, else unique within the row.
      trajectory_index: i32, position in the per-trajectory arrays, -1 on padding.
      action_mask: bool, the policy sampled the token.
      loss_mask: bool, the token enters the loss: sampled, and not dropped by `on_limit`.
      rollout_logprobs: f32, as recorded by the sampler.
      rewards: f32, on action tokens.
      turn_ids: i32.
      policy_versions: i32, of the weights that sampled the token, -1 elsewhere.
      entropies: f32 nats, of the sampler.
      temperature: f32, at which the token was sampled.

    Per trajectory [N], in the order of arrival, which stateful baselines follow:
      reward: f32, sum over the episode.
      group: i32, the same number = the same group within the batch, else -1.
      task: i32, the same number = the same task, in every batch; -1 where not valid.
      terminated: bool, nothing comes after the last token (after `on_limit`).
      bootstrap: bool, the value after the last token stands for what would have come.
      length: i32, action tokens.
      last_token: i32, place of its last token in the stream; 0 where not valid.
      valid: bool, the slot holds a trajectory.

    Optional per token, None when the algorithm does not ask for them: proximal_logprobs,
    ref_logprobs [M, B, T]; and what the sampler recorded on action tokens, 0 elsewhere (see
    types.Record): aux_tokens, aux_logprobs [M, B, T, draws], topk_tokens, topk_logprobs
    [M, B, T, likeliest], full_logprobs [M, B, T, V]. And expert_ids [M, B, T, L, k] i16, the
    experts that the sampler's routers chose when it read the token, -1 where nobody recorded it
    and on padding; the policy replays the choice (see types.Trajectory).
    """

    tokens: Array
    positions: Array
    segment_ids: Array
    trajectory_index: Array
    action_mask: Array
    loss_mask: Array
    rollout_logprobs: Array
    rewards: Array
    turn_ids: Array
    policy_versions: Array
    entropies: Array
    temperature: Array
    reward: Array
    group: Array
    task: Array
    terminated: Array
    bootstrap: Array
    length: Array
    last_token: Array
    valid: Array
    proximal_logprobs: Array | None = None
    ref_logprobs: Array | None = None
    aux_tokens: Array | None = None
    aux_logprobs: Array | None = None
    topk_tokens: Array | None = None
    topk_logprobs: Array | None = None
    full_logprobs: Array | None = None
    expert_ids: Array | None = None

    @property
    def num_trajectories(self) -> int:
        """N, a static number: slots for trajectories, not how many are valid."""
        return self.valid.shape[-1]


TRAJECTORY_FIELDS = frozenset(
    (
        "reward",
        "group",
        "task",
        "terminated",
        "bootstrap",
        "length",
        "last_token",
        "valid",
    )
)


def token_fields(batch: TokenBatch) -> dict[str, Array]:
    """The per-token arrays by name, without the optional ones that are None."""
    arrays = {
        field.name: getattr(batch, field.name)
        for field in dataclasses.fields(batch)
        if field.name not in TRAJECTORY_FIELDS
    }
    return {name: array for name, array in arrays.items() if array is not None}


def micro_batch(batch: TokenBatch, index: Any) -> TokenBatch:
    """The micro-batch at `index` (an int or a traced i32): per-token arrays become [B, T]."""
    tokens = {name: array[index] for name, array in token_fields(batch).items()}
    return dataclasses.replace(batch, **tokens)
