"""Trajectories of a run, scored again under weights of the same run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxrl_single import checkpoint as checkpoint_lib
from jaxrl_single import param_tree, types, workdir
from jaxrl_single.models import api
from jaxrl_single.stages import build, run_weights, warm_start
from jaxrl_single.trainer import score

# Fields of a record by what the sampler recorded of draws and rows.
_ROWS = {f"{kind}_logprobs": f"{kind}_policy_logprobs" for kind in ("aux", "topk", "full")}


@dataclasses.dataclass(frozen=True)
class Weights:
    """What trajectories are scored under.

    Attributes:
      where: in words, for people.
      policy, reference: params; the reference is the policy that RL began with.
      critic: its params; None where the run trains none.
    """

    where: str
    policy: api.Params
    reference: api.Params
    critic: api.Params | None


def weights_of(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    *,
    step: int | None = None,
    version: int | str | None = None,
) -> Weights:
    """Weights of a run, in host memory.

    Args:
      step: of a checkpoint of RL, 0 for those that RL begins with; None = the newest.
      version: of the policy instead of a step's, as `run_weights.find` takes it; the critic is the
        newest.

    Raises:
      ValueError: no such checkpoint, or nothing was trained yet.
      checkpoint.CheckpointError, weights.base.InvalidWeights: damaged, or no such version.
    """
    warm, rl = (paths.stage_checkpoints(stage) for stage in ("warm_start", "rl"))
    steps = workdir.checkpoint_steps(rl)
    if not workdir.checkpoint_steps(warm):
        raise ValueError(f"{paths.root} has no checkpoint yet; its warm start comes first")
    if step not in (None, 0, *steps):
        raise ValueError(
            f"there is no checkpoint of step {step}; there are those of {[0, *steps]} "
            "(checkpoint.every_steps, checkpoint.keep)"
        )
    step = (steps or [0])[-1] if step is None else step
    if step and "ref_logprobs" in build.algorithm(config).reads:
        reference = _part(rl, step, "reference_params/")
    else:
        reference = _part(warm, workdir.checkpoint_steps(warm)[-1], "")
    policy, where = _part(rl, step, "policy_params/") if step else reference, f"step {step}"
    if version is not None:
        found = run_weights.find(config, paths, version=version)
        policy = jax.tree.map(lambda tensor: tensor[...], found.params)
        where = f"{found.where}, critic of {where}"
    return Weights(where, policy, reference, _critic(config, paths, step))


def make(
    config: ml_collections.ConfigDict, weights: Weights
) -> Callable[[Sequence[types.Trajectory]], Iterator[dict[str, Any]]]:
    """A function that scores trajectories, of either split, in batches of the run's own shapes.

    It yields, for each trajectory, arrays [T] by name of the field of a record: policy_logprobs,
    policy_entropies, ref_logprobs, with a critic values; bootstrap_value where rollout.on_limit
    asks for it; and policy log-probs [actions, width] of recorded draws and rows.
    """
    shape = run_weights.describe(config).model
    policy, critic = api.build_policy(shape), api.build_critic(shape)
    critic = critic if weights.critic is not None else None
    rescore = score.make_rescore(policy, critic, chunk=warm_start.LOGPROB_CHUNK)
    params = jax.device_put((weights.policy, weights.reference, weights.critic or {}))
    widths = build.record(config).widths(shape.vocab_size)
    routing = build.routing(config, shape)
    size = config.batch.num_trajectories

    def score_all(trajectories: Sequence[types.Trajectory]) -> Iterator[dict[str, Any]]:
        recorded = widths if all(one.action_arrays for one in trajectories) else {}
        pack = build.packer(config, recorded=recorded, routing=routing)
        for start in range(0, len(trajectories), size):
            part = trajectories[start : start + size]
            # Packed to be scored, not to be trained; packing refuses held-out episodes otherwise.
            batch = pack([dataclasses.replace(one, split="train") for one in part])
            found = jax.device_get(rescore(*params, batch))
            for number, one in enumerate(part):
                there = batch.trajectory_index == number
                yield _fields(found, there, one, bootstrap=bool(batch.bootstrap[number]), at=number)

    return score_all


def _fields(
    found: Mapping[str, np.ndarray],
    there: np.ndarray,
    trajectory: types.Trajectory,
    *,
    bootstrap: bool,
    at: int,
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, array in found.items():
        if name in _ROWS:
            fields[_ROWS[name]] = array[there][trajectory.action_mask]
        elif name != "bootstrap_values":
            fields[name] = array[there]
        elif bootstrap:
            fields["bootstrap_value"] = float(array[at])
    return fields


def _critic(
    config: ml_collections.ConfigDict, paths: workdir.Workdir, step: int
) -> api.Params | None:
    if not build.algorithm(config).needs_critic:
        return None
    if step:
        return _part(paths.stage_checkpoints("rl"), step, "critic_params/")
    directory = paths.stage_checkpoints("value_pretraining")
    steps = workdir.checkpoint_steps(directory)
    return _part(directory, steps[-1], "") if steps else None


def _part(directory: Any, step: int, part: str) -> api.Params:
    return param_tree.unflatten(checkpoint_lib.read_part(directory, step, part))
