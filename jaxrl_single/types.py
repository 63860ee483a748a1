"""The nouns of the host side: Task, Ticket, Trajectory. numpy only, no jax.

A trajectory is one flat token sequence; `action_mask` says which tokens the policy sampled.
There is no prompt/completion split, because an agent's episode alternates between the two.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np

SPLITS = ("train", "eval")
SOURCES = ("policy", "script")
FINISH_REASONS = ("stop", "length", "cancelled")
NOT_SAMPLED = -1  # policy_versions of tokens that no policy sampled
LOGPROB_ROUNDING = 1e-5  # a log-prob may exceed 0 by float rounding only
# Of a reward and of an episode's sum: variances square it and batches add the squares, in float32.
MAX_REWARD = 1e9
MAX_FACTS = 32  # names of `Trajectory.facts`, of an episode and of a step's metrics
FACT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")

TOKEN_FIELDS = {
    "tokens": np.int32,
    "action_mask": np.bool_,
    "rollout_logprobs": np.float32,
    "policy_versions": np.int32,
    "turn_ids": np.int32,
    "rewards": np.float32,
    "entropies": np.float32,
    "segment_ids": np.int32,
}
ACTION_FIELDS = {  # optional; a row for each sampled token
    "aux_tokens": np.int32,
    "aux_logprobs": np.float32,
    "topk_tokens": np.int32,
    "topk_logprobs": np.float32,
    "full_logprobs": np.float32,
}
ROUTING_FIELDS = {"expert_ids": np.int16}  # optional; an entry for each token and layer
UNKNOWN_EXPERT = -1  # expert_ids of a token whose routing nobody recorded


class InvalidTrajectory(ValueError):
    """A trajectory breaks an invariant; the message names the field and what is allowed."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One question for the agent. `data` is whatever else its environment needs (JSON types)."""

    id: str
    question: str
    answer: str
    data: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Ticket:
    """The trainer's order for one episode.

    Attributes:
      run_id: the run that issued it; a sampler refuses tickets of other runs.
      number: counts up from 0 within the run, never reused; names the randomness of the episode.
      attempt: 0, then 1, 2 ... when an episode failed and is tried again.
      task: what to do.
      split: "train" or "eval"; trajectories of "eval" are never trained.
      temperature: of sampling; > 0.
      policy_version: None = whatever the sampler serves at each token (training);
        a number = every token is sampled from exactly that version (evaluation).
      group_id: tickets with the same group share a task (group_size > 1), else == number.
      purpose: which stage asked ("value_pretraining", "rl", "eval/<stage>@<step>").
    """

    run_id: str
    number: int
    attempt: int
    task: Task
    split: str = "train"
    temperature: float = 1.0
    policy_version: int | None = None
    group_id: int = 0
    purpose: str = "rl"

    @property
    def key(self) -> str:
        """Name of the ticket's files; sorts in the order of issue."""
        return f"{self.number:09d}-{self.attempt}"


@dataclasses.dataclass(frozen=True)
class Record:
    """What a sampler writes down of each distribution that it samples from, besides the token.

    Attributes:
      num_aux: M tokens more, drawn like the sampled one, with replacement, independent of it and
        of one another; they are written down only.
      topk: K likeliest tokens, likeliest first.
      full: the log-probs of the whole vocabulary.
      experts: of each token that the model reads, which experts each layer's router chose; the
        trainer replays the choice. Mixture-of-experts models only.
    """

    num_aux: int = 0
    topk: int = 0
    full: bool = False
    experts: bool = False

    def __post_init__(self):
        for name, count in (("num_aux", self.num_aux), ("topk", self.topk)):
            if count < 0:
                raise ValueError(f"record: {name} is {count}, must be >= 0")

    def widths(self, vocab_size: int) -> dict[str, int]:
        """Length of a row of each of the ACTION_FIELDS that are written.

        Raises:
          ValueError: more likeliest tokens than tokens.
        """
        if self.topk > vocab_size:
            raise ValueError(f"record: topk is {self.topk}, the vocabulary has {vocab_size} tokens")
        columns = {"aux": self.num_aux, "topk": self.topk, "full": vocab_size * self.full}
        found = {name: columns[name.partition("_")[0]] for name in ACTION_FIELDS}
        return {name: width for name, width in found.items() if width}


RECORD_NOTHING = Record()


@dataclasses.dataclass(frozen=True)
class EpisodeError:
    """Why an episode has no reward. kind is "env", "tool", "reward", "sampler" or "limit"."""

    kind: str
    message: str  # the last line of the traceback first, then the traceback


@dataclasses.dataclass
class Trajectory:
    """One recorded episode.

    The arrays of TOKEN_FIELDS are [T]. Those of ACTION_FIELDS are None, or hold a row for each
    sampled token, in order; see `Record`.

    Attributes:
      tokens: i32, the whole episode as the model saw it.
      action_mask: True where the policy sampled the token.
      rollout_logprobs: natural log of the probability under the distribution that was really
        sampled (temperature included); meaningless where action_mask is False.
      policy_versions: version of the weights that sampled the token, else NOT_SAMPLED.
      turn_ids: 0, 1, ... the turn that the token belongs to; a turn is an action and the
        observation before it.
      rewards: reward per token; after `fold_rewards` it lies on action tokens only.
      entropies: nats, full vocabulary, of the sampler at that token; 0 where not sampled.
      segment_ids: 1, 2, ... a new segment starts where the context was rewritten.
      aux_tokens, aux_logprobs: [actions, M], further draws at the same place.
      topk_tokens, topk_logprobs: [actions, K], the likeliest tokens.
      full_logprobs: [actions, V], whole rows; -inf where a token was impossible.
      expert_ids: [T, L, k] of L layers with k experts a token: those that the sampler's routers
        chose when the model read the token, UNKNOWN_EXPERT where nobody recorded it (a token that
        was never read, as the last one, for instance). None when nothing was recorded.
      reward: sum of the episode's rewards; None when `error` is set.
      terminated: the environment ended the episode by its own rules.
      truncated: a limit (turns, tokens, context) ended it; both may be False only for errors.
      finish_reasons: one per turn, of FINISH_REASONS.
      success: the evaluator's verdict, None when the environment gives none.
      timings: seconds by name ("sampling", "environment", "total").
      facts: numbers by name that the environment gave, see `envs.base.StepResult.info`.
      messages: [{"role", "content"}] for people; never used in training.
    """

    run_id: str
    ticket: int
    attempt: int
    task_id: str
    tokens: np.ndarray
    action_mask: np.ndarray
    rollout_logprobs: np.ndarray
    policy_versions: np.ndarray
    turn_ids: np.ndarray
    rewards: np.ndarray
    entropies: np.ndarray
    segment_ids: np.ndarray
    reward: float | None
    terminated: bool
    truncated: bool
    group_id: int = 0
    parent_id: str | None = None
    fork_index: int = 0
    split: str = "train"
    source: str = "policy"
    env: str = ""
    purpose: str = "rl"
    temperature: float = 1.0
    success: bool | None = None
    finish_reasons: tuple[str, ...] = ()
    error: EpisodeError | None = None
    timings: dict[str, float] = dataclasses.field(default_factory=dict)
    facts: dict[str, float] = dataclasses.field(default_factory=dict)
    messages: tuple[dict[str, str], ...] = ()
    aux_tokens: np.ndarray | None = None
    aux_logprobs: np.ndarray | None = None
    topk_tokens: np.ndarray | None = None
    topk_logprobs: np.ndarray | None = None
    full_logprobs: np.ndarray | None = None
    expert_ids: np.ndarray | None = None

    @property
    def key(self) -> str:
        return f"{self.ticket:09d}-{self.attempt}"

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_actions(self) -> int:
        """Sampled tokens."""
        return int(self.action_mask.sum())

    @property
    def action_arrays(self) -> dict[str, np.ndarray]:
        """The arrays of ACTION_FIELDS that were recorded, by name."""
        arrays = {name: getattr(self, name) for name in ACTION_FIELDS}
        return {name: array for name, array in arrays.items() if array is not None}

    @property
    def oldest_version(self) -> int:
        """Smallest version among the sampled tokens; NOT_SAMPLED when there is none."""
        versions = self.policy_versions[self.action_mask]
        return int(versions.min()) if len(versions) else NOT_SAMPLED


def validate(trajectory: Trajectory) -> None:
    """Raises InvalidTrajectory unless the trajectory can be trained on or counted.

    Called when a trajectory is written and again when it is read.
    """
    where = f"trajectory {trajectory.run_id}/{trajectory.key}"
    length = len(trajectory.tokens)
    for name, dtype in TOKEN_FIELDS.items():
        array = getattr(trajectory, name)
        if array.ndim != 1 or array.dtype != dtype or len(array) != length:
            raise InvalidTrajectory(
                f"{where}: {name} is {array.dtype}{list(array.shape)}, "
                f"expected {np.dtype(dtype)}[{length}] as the tokens have"
            )
    sampled = trajectory.source == "policy" and trajectory.error is None
    validate_rows(trajectory.action_arrays, trajectory.num_actions, where, sampled=sampled)
    if trajectory.expert_ids is not None:
        validate_routing(trajectory.expert_ids, length, where)
    if trajectory.split not in SPLITS or trajectory.source not in SOURCES:
        raise InvalidTrajectory(
            f"{where}: split {trajectory.split!r} and source {trajectory.source!r}, "
            f"allowed are {SPLITS} and {SOURCES}"
        )
    if trajectory.error is not None:
        if trajectory.reward is not None:
            raise InvalidTrajectory(f"{where}: has an error and a reward; an error has none")
        return
    _validate_finished(trajectory, where)


def _validate_finished(trajectory: Trajectory, where: str) -> None:
    mask = trajectory.action_mask
    if trajectory.reward is None or not abs(trajectory.reward) <= MAX_REWARD:
        raise InvalidTrajectory(
            f"{where}: reward is {trajectory.reward}, expected a finite number, at most "
            f"{MAX_REWARD:g} to either side of 0"
        )
    if not mask.any():
        raise InvalidTrajectory(f"{where}: no token was sampled, so there is nothing to train")
    if mask[0]:
        raise InvalidTrajectory(f"{where}: the first token is an action; a prompt must come first")
    if not (trajectory.terminated or trajectory.truncated):
        raise InvalidTrajectory(f"{where}: neither terminated nor truncated, so it is unfinished")
    if not trajectory.temperature > 0:
        raise InvalidTrajectory(f"{where}: temperature {trajectory.temperature}, must be > 0")
    if not (np.abs(trajectory.rewards[mask]) <= MAX_REWARD).all():
        raise InvalidTrajectory(
            f"{where}: rewards of action tokens must be finite, at most {MAX_REWARD:g} to either "
            "side of 0"
        )
    if trajectory.source == "policy":
        logprobs = trajectory.rollout_logprobs[mask]
        bad = ~np.isfinite(logprobs) | (logprobs > LOGPROB_ROUNDING)
        if bad.any():
            at = int(np.flatnonzero(mask)[bad][0])
            raise InvalidTrajectory(
                f"{where}: rollout_logprobs[{at}] is {trajectory.rollout_logprobs[at]}, "
                "a sampled token has a finite log-probability <= 0"
            )
        if (trajectory.policy_versions[mask] < 0).any():
            raise InvalidTrajectory(f"{where}: a sampled token carries no policy version")


def validate_rows(
    arrays: dict[str, np.ndarray], num_actions: int, where: str, *, sampled: bool
) -> None:
    """Raises InvalidTrajectory unless arrays of ACTION_FIELDS are what their names say.

    Args:
      arrays: by name, those that were recorded.
      num_actions: rows that each must have.
      where: begins the message.
      sampled: the values count too: ids are ids, log-probs are log-probs, and of draws finite.
    """
    for name, array in arrays.items():
        dtype = ACTION_FIELDS[name]
        shaped = array.ndim == 2 and len(array) == num_actions and array.shape[1] > 0
        if not shaped or array.dtype != dtype:
            raise InvalidTrajectory(
                f"{where}: {name} is {array.dtype}{list(array.shape)}, expected "
                f"{np.dtype(dtype)}[{num_actions}, at least 1], a row for each sampled token"
            )
    for kind in ("aux", "topk"):
        pair = [arrays.get(f"{kind}_{what}") for what in ("tokens", "logprobs")]
        shapes = [None if array is None else array.shape for array in pair]
        if shapes[0] != shapes[1]:
            raise InvalidTrajectory(
                f"{where}: {kind}_tokens and {kind}_logprobs have the shapes {shapes}, "
                "they must be equal"
            )
    for name, array in arrays.items() if sampled else ():
        _validate_row_values(name, array, where)


def _validate_row_values(name: str, array: np.ndarray, where: str) -> None:
    if name.endswith("_tokens"):
        bad, allowed = array < 0, "a token id, >= 0"
    else:
        bad, allowed = ~(array <= LOGPROB_ROUNDING), "a log-probability, <= 0"
    if name == "aux_logprobs":
        bad, allowed = bad | ~np.isfinite(array), "a log-probability of a draw, finite and <= 0"
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InvalidTrajectory(
            f"{where}: {name}[{row}, {column}] is {array[row, column]}, expected {allowed}"
        )


def validate_routing(expert_ids: np.ndarray, num_tokens: int, where: str) -> None:
    """Raises InvalidTrajectory unless `expert_ids` are [num_tokens, L, k], see `Trajectory`.

    A token's routing is known in all layers or in none, and no layer chose an expert twice.

    Args:
      where: begins the message.
    """
    dtype, shape = ROUTING_FIELDS["expert_ids"], expert_ids.shape
    if len(shape) != 3 or shape[0] != num_tokens or 0 in shape[1:] or expert_ids.dtype != dtype:
        raise InvalidTrajectory(
            f"{where}: expert_ids is {expert_ids.dtype}{list(shape)}, expected "
            f"{np.dtype(dtype)}[{num_tokens}, layers, experts per token] as the tokens have"
        )
    known = (expert_ids != UNKNOWN_EXPERT).any(axis=(1, 2))
    ordered = np.sort(expert_ids[known], axis=-1)
    negative = (ordered < 0).any(axis=(1, 2))
    twice = (np.diff(ordered, axis=-1) == 0).any(axis=(1, 2))
    if (negative | twice).any():
        at = int(np.flatnonzero(known)[negative | twice][0])
        raise InvalidTrajectory(
            f"{where}: expert_ids[{at}] is {expert_ids[at].tolist()}, expected different experts, "
            f">= 0, in each layer, or {UNKNOWN_EXPERT} throughout"
        )


def fold_rewards(rewards: np.ndarray, action_mask: np.ndarray) -> np.ndarray:
    """Moves each reward on an observation token to the nearest action token before it.

    Args:
      rewards: [T] float32.
      action_mask: [T] bool.

    Returns:
      [T] float32 with the same sum and zeros where action_mask is False.

    Raises:
      InvalidTrajectory: a non-zero reward comes before the first action: nobody owns it.
    """
    folded = np.zeros_like(rewards)
    owner = np.maximum.accumulate(np.where(action_mask, np.arange(len(rewards)), -1))
    orphans = (owner < 0) & (rewards != 0)
    if orphans.any():
        at = int(np.flatnonzero(orphans)[0])
        raise InvalidTrajectory(
            f"reward {rewards[at]} at token {at} precedes the first action, so no action owns it"
        )
    owned = owner >= 0
    np.add.at(folded, owner[owned], rewards[owned])
    return folded
