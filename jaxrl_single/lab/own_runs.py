"""Our own runs -> the record format of `records`: what a workdir still holds of its trajectories.

Trajectories that stay come first, by the step that trained them and in the order of its batch, then
those that wait to be trained or covered by a checkpoint, as they finished. Errors are left out.
Draws and rows that the sampler recorded come along.

What a kept step said of its tokens (evidence.py) becomes policy_logprobs, policy_entropies, values,
bootstrap_value, proximal_logprobs and ref_logprobs. Without it policy_logprobs are SET TO THE
SAMPLER'S, as if the policy had not changed since; so are those of draws and rows, always.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl_single import evidence, store, types, workdir

Json = dict[str, Any]

_OF_STEP = (
    "policy_logprobs",
    "policy_entropies",
    "values",
    "proximal_logprobs",
    "ref_logprobs",
)


@dataclasses.dataclass
class Tally:
    """What came out: records, those whose step's log-probs are known, and those with values.

    Attributes:
      masked: of the records, those that their step left out of its loss (rollout.on_limit=mask).
      rows: of the records, those with draws or rows.
      errors: episodes that failed, which are no records.
    """

    records: int = 0
    known: int = 0
    values: int = 0
    masked: int = 0
    rows: int = 0
    errors: int = 0


def from_store(
    path: os.PathLike[str] | str,
    *,
    split: str = "train",
    steps: Collection[int] = (),
    tally: Tally | None = None,
) -> Iterator[Json]:
    """Records of a run's trajectories; see above.

    Args:
      path: a run's WORKDIR, or its trajectories directory, beside which there is no evidence.
      steps: of RL that trained them, or evaluations after these; none = all.
      tally: counts along.

    Raises:
      types.InvalidTrajectory: a file is torn or not ours.
      evidence.BadEvidence: the evidence of a step is torn.
    """
    tally = tally or Tally()
    samples = workdir.Workdir(path).samples if split == "train" else None
    read = functools.lru_cache(maxsize=1)(evidence.read)
    for place, trajectory in trajectories(path, split=split, steps=steps, tally=tally):
        record = record_of(trajectory)
        found = place and read(evidence.files(samples)[place[0]])
        if found and found.facts.run_id == trajectory.run_id:
            masked = ~found.of(place[1])["loss_mask"] & trajectory.action_mask
            tally.masked += bool(masked.any())
            record |= _of_step(found, place[1], trajectory.action_mask)
            tally.known += not found.facts.critic_only
            tally.values += "values" in record
        tally.rows += bool(trajectory.action_arrays)
        yield record


def trajectories(
    path: os.PathLike[str] | str, *, split: str, steps: Collection[int], tally: Tally
) -> Iterator[tuple[tuple[int, int] | None, types.Trajectory]]:
    """Trajectories in that order, each with its step and its place in the batch, if known.

    Arguments and errors as `from_store`.
    """
    paths = workdir.Workdir(path)
    directory = paths.trajectories if paths.trajectories.is_dir() else paths.root
    place = _places(paths.samples) if split == "train" else {}
    kept = store.kept(directory, split)
    found = []
    for number, file in enumerate(store.all_files(directory, split)):
        of_batch = place.get(store.key_of(file))
        step = of_batch[0] if of_batch else kept.get(file.parent, math.inf)
        dropped = file.parent.name.endswith("-dropped")  # no part of the step's batch
        if not steps or (step in steps and not dropped):
            order = (step, not of_batch, of_batch[1] if of_batch else number)
            found.append((order, of_batch, file))
    for _, of_batch, file in sorted(found, key=lambda one: one[0]):
        try:
            trajectory = store.decode(file.read_bytes())
        except FileNotFoundError:  # consumed and covered in this very moment
            continue
        if trajectory.error is None:
            tally.records += 1
            yield of_batch, trajectory
        else:
            tally.errors += 1


def record_of(trajectory: types.Trajectory) -> Json:
    """The record of a trajectory alone, policy log-probs as the sampler's."""
    mask = trajectory.action_mask
    record: Json = {
        "id": f"{trajectory.run_id}/{trajectory.key}",
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "terminated": trajectory.terminated,
        "action_mask": mask.astype(int).tolist(),
        "reward": float(trajectory.reward),
        "tokens": trajectory.tokens.tolist(),
        "policy_versions": trajectory.policy_versions.tolist(),
        "turn_ids": trajectory.turn_ids.tolist(),
        "entropies": on_actions(trajectory.entropies, mask),
        "policy_logprobs": on_actions(trajectory.rollout_logprobs, mask),
        "rollout_logprobs": on_actions(trajectory.rollout_logprobs, mask),
    }
    # Scripted and imported trajectories may have a reward that no token holds.
    if np.isclose(trajectory.rewards[mask].sum(), trajectory.reward):
        record["rewards"] = trajectory.rewards.tolist()
    if trajectory.parent_id is not None:
        record |= {"parent_id": trajectory.parent_id, "fork_index": trajectory.fork_index}
    for name, rows in trajectory.action_arrays.items():
        kind, _, what = name.partition("_")
        if what == "logprobs":
            spread = rows_on_actions(rows, mask)
            record |= {f"{kind}_{whose}_logprobs": spread for whose in ("policy", "rollout")}
        elif kind == "topk":
            record["topk_tokens"] = rows_on_actions(rows, mask)
    return record


def as_json(fields: Mapping[str, Any], trajectory: types.Trajectory) -> Json:
    """Arrays [T], rows [actions, width] and numbers as fields of the trajectory's record."""
    mask = trajectory.action_mask
    found: Json = {}
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            found[name] = (on_actions if value.ndim == 1 else rows_on_actions)(value, mask)
        else:
            found[name] = value
    return found


def parse_steps(text: str) -> frozenset[int]:
    """Steps of "10,20"; none of "".

    Raises:
      ValueError: something else.
    """
    try:
        return frozenset(int(number) for number in filter(None, text.split(",")))
    except ValueError:
        raise ValueError(f"steps are {text!r}, expected numbers as in 10,20") from None


def notes(tally: Tally) -> Iterator[str]:
    """What somebody who scores the records must know, in sentences."""
    yield f"{tally.records} records; {tally.errors} episodes failed and are left out"
    unknown = tally.records - tally.known
    if tally.known:
        yield (
            f"{tally.known} of them have the policy_logprobs that the step computed, "
            f"{tally.values} the critic's values"
        )
    if unknown:
        yield (
            f"of {unknown} no policy_logprobs were recorded: theirs are set to the sampler's, so "
            "that all ratios are 1; python -m jaxrl_single.run.rescore computes them"
        )
    if tally.rows:
        yield (
            f"of {tally.rows} the policy_logprobs of draws or rows are set to the sampler's; "
            "run.rescore computes them"
        )
    if tally.masked:
        yield (
            f"{tally.masked} were cut by a limit and left out of the loss of their step "
            "(rollout.on_limit=mask); the scorer counts them"
        )


def on_actions(array: np.ndarray, mask: np.ndarray) -> list[float | None]:
    """An array [T] as a field of a record: null where nothing was sampled."""
    return [float(x) if counts else None for x, counts in zip(array, mask, strict=True)]


def rows_on_actions(rows: np.ndarray, mask: np.ndarray) -> list:
    """Rows of action tokens on all tokens; null elsewhere, and for what was impossible."""
    finite = [[x if np.isfinite(x) else None for x in row] for row in rows.tolist()]
    remaining = iter(finite)
    return [next(remaining) if counts else None for counts in mask]


def _places(samples: pathlib.Path) -> Mapping[str, tuple[int, int]]:
    """Step and place in its batch by the key of a trajectory."""
    return {
        facts["key"]: (step, number)
        for step, file in evidence.files(samples).items()
        for number, facts in enumerate(evidence.read_facts(file).trajectories)
    }


def _of_step(found: evidence.Evidence, number: int, mask: np.ndarray) -> Json:
    """What a step said of one of its trajectories, as fields of a record."""
    arrays = found.of(number)
    fields: Json = {name: on_actions(arrays[name], mask) for name in _OF_STEP if name in arrays}
    if found.facts.trajectories[number]["bootstrap"]:
        fields["bootstrap_value"] = float(found.arrays["bootstrap_values"][number])
    return fields
