"""Stage 3: the loop of asynchronous RL.

    top up tickets -> take a batch -> train step -> publish -> evaluate, checkpoint, log

The sampler goes on with older weights while this loop trains; all waiting is in `take`.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from jaxrl_single import types
from jaxrl_single.data import token_batch
from jaxrl_single.stages import gate, keeping, records, rollouts, waiting
from jaxrl_single.trainer import state as state_lib
from jaxrl_single.trainer import step as step_lib
from jaxrl_single.weights import base as weights_base

PURPOSE = "rl"
_log = logging.getLogger(__name__)


class Diverged(RuntimeError):
    """Loss or gradient is not finite; nothing was changed by that step."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """What the loop works with.

    Attributes:
      rollouts: orders and collects episodes; its weights are published already.
      train_step: see trainer/step.py.
      pack: trajectories -> TokenBatch on the host, with what the algorithm reads.
      pack_evaluation: the same on the devices with what evaluations record: tokens, and the choice
        of experts if the trainer replays it.
      place: puts a batch onto the devices.
      mismatch: see trainer/score.py; used on evaluations, whose weights are known exactly.
      fetch: version -> its published parameters, on the devices.
      records: metrics, status, evaluations.
      keeper: of the evidence of steps.
      save: (step, state) -> seconds; writes a checkpoint.
      prefer_tasks: takes the algorithm's state; orders tasks as often as that says.
      compilations: how many XLA compilations so far.
      sampler_stats: newest numbers of the sampler by metric name.
    """

    config: ml_collections.ConfigDict
    rollouts: rollouts.Rollouts
    train_step: step_lib.Step
    pack: Callable[[list[types.Trajectory]], token_batch.TokenBatch]
    pack_evaluation: Callable[[list[types.Trajectory]], token_batch.TokenBatch]
    place: Callable[[Any], Any]
    mismatch: gate.Mismatch
    fetch: Callable[[int], Any]
    records: records.Records
    keeper: keeping.Keeper
    save: Callable[[int, state_lib.TrainState], float]
    prefer_tasks: Callable[[Any], None]
    compilations: Callable[[], int]
    sampler_stats: Callable[[], dict[str, float]]


def run(loop: Loop, state: state_lib.TrainState) -> state_lib.TrainState:
    """Trains from the state's step to `config.rl.num_steps`; saves at the end and when stopped.

    Raises:
      Diverged, waiting.RolloutFailed, gate.GateFailed: the last checkpoint is intact.
      waiting.Stopped: after a checkpoint; StoppedInStep: without one.
    """
    num_steps = loop.config.rl.num_steps
    step = int(state.step)
    loop.records.status("rl", step, num_steps)
    loop.prefer_tasks(state.algorithm_state)
    saved_s = 0.0
    try:
        while step < num_steps:
            state = _one_step(loop, state, step, saved_s)
            step += 1
            _order_evaluation(loop, step)
            due = step % loop.config.checkpoint.every_steps == 0 or step == num_steps
            saved_s = loop.save(step, state) if due else 0.0
            loop.records.status("rl", step, num_steps)
    except waiting.StoppedInStep:
        raise
    except waiting.Stopped:
        loop.save(step, state)
        raise
    return state


def _one_step(
    loop: Loop, state: state_lib.TrainState, step: int, saved_s: float
) -> state_lib.TrainState:
    config, began = loop.config, time.monotonic()
    loop.rollouts.top_up(purpose=PURPOSE)
    taken = loop.rollouts.take(config.batch.num_trajectories, purpose=PURPOSE, step=step + 1)
    version_before = loop.rollouts.version
    batch = loop.pack(taken.trajectories)
    critic_only = step < config.rl.critic_only_steps
    trained_at = time.monotonic()
    state, found, of_tokens = loop.train_step(state, loop.place(batch), jnp.bool_(critic_only))
    # Publishing needs the new weights on the host anyway, so waiting here costs nothing.
    metrics = {name: float(value) for name, value in jax.device_get(found).items()}
    _check_finite(metrics, step, taken.trajectories)
    published_at = time.monotonic()
    if not critic_only and not metrics["train/empty_update"]:
        loop.rollouts.publish(jax.device_get(state.policy_params), step=step + 1)
    loop.prefer_tasks(state.algorithm_state)
    kept_at = time.monotonic()
    if loop.rollouts.settings.keep.holds(step + 1):
        facts = keeping.facts(
            taken.trajectories,
            batch,
            step=step + 1,
            policy_version=version_before,
            algorithm=config.algorithm.name,
            critic_only=critic_only,
        )
        loop.keeper.write(facts, batch, of_tokens)
    ended = time.monotonic()
    _finish_evaluations(loop)
    metrics |= records.batch_metrics(taken.trajectories, batch)
    metrics |= {
        "time/step_s": ended - began,
        "time/wait_s": taken.waited_s,
        "time/train_s": published_at - trained_at,
        "time/publish_s": kept_at - published_at,
        "time/checkpoint_s": saved_s,
        "speed/trainer_tokens_per_s": metrics["train/tokens"] / (ended - began),
        "train/policy_version": loop.rollouts.version,
    }
    if (step + 1) % config.trainer.log_every == 0:
        _log_step(loop, step + 1, taken, metrics, version_before)
    return state


def _log_step(
    loop: Loop, step: int, taken: rollouts.Taken, metrics: dict[str, float], version: int
) -> None:
    staleness, histograms = records.staleness_metrics(
        taken, trainer_version=version, max_length=loop.config.env.max_tokens
    )
    in_flight = len(loop.rollouts.book.in_flight("train"))
    metrics = {
        **metrics,
        **records.episode_metrics(taken.trajectories),
        **staleness,
        **records.error_metrics(loop.rollouts.take_errors(), len(loop.rollouts.store.rejections)),
        **loop.sampler_stats(),
        "staleness/queued": loop.rollouts.queued(),
        "staleness/in_flight": in_flight,
        "train/compilations": loop.compilations(),
    }
    loop.records.metrics("rl", step, metrics, histograms)


def _order_evaluation(loop: Loop, step: int) -> None:
    every = loop.config.eval.every_steps
    if every and step % every == 0 and step < loop.config.rl.num_steps:
        loop.rollouts.request_evaluation(
            f"rl@{step}",
            num_tasks=loop.config.eval.periodic_num_tasks,
            version=loop.rollouts.version,
        )


def _finish_evaluations(loop: Loop) -> None:
    """Records the periodic evaluations whose last episode has come in."""
    for purpose in loop.rollouts.open_evaluations():
        episodes = loop.rollouts.take_evaluation(purpose, wait=False)
        if episodes is None:
            return  # in order of request, because steps grow in metrics.jsonl
        record_evaluation(loop, purpose, episodes)


def record_evaluation(loop: Loop, purpose: str, episodes: list[types.Trajectory]):
    """Records an evaluation that was asked for under "STAGE@STEP"; returns its result."""
    stage, _, step = purpose.partition("@")
    version = episode_version(episodes)
    extra = {} if version is None else _mismatch(loop, version, episodes)
    return loop.records.evaluation(
        stage, int(step), -1 if version is None else version, episodes, extra
    )


def _mismatch(loop: Loop, version: int, episodes: list[types.Trajectory]) -> dict[str, float]:
    """Sampler against trainer on the episodes; {} when the weights are gone."""
    try:
        params = loop.fetch(version)
    except weights_base.MissingVersion as error:
        _log.warning("an evaluation is not compared with the trainer's numbers: %s", error)
        return {}
    limit = loop.config.batch.num_trajectories
    return gate.measure(loop.mismatch, params, episodes, loop.pack_evaluation, limit=limit)


def episode_version(episodes: list[types.Trajectory]) -> int | None:
    """The version that sampled an evaluation, None when no episode went well."""
    versions = {int(e.policy_versions[e.action_mask].max()) for e in episodes if e.error is None}
    return max(versions, default=None)


def _check_finite(
    metrics: dict[str, float], step: int, trajectories: list[types.Trajectory]
) -> None:
    if not metrics["train/nonfinite"]:
        return
    # In a critic-only step the policy's numbers are NaN because nobody computed them.
    told = "critic/" if metrics["train/critic_only"] else ("critic/", "policy/")
    unsound = {
        name: value
        for name, value in metrics.items()
        if name.startswith(told)
        and name.endswith(("/loss", "/loss_last", "/gradient_norm"))
        and not math.isfinite(value)
    }
    raise Diverged(
        f"loss or gradient is not finite at RL step {step + 1}: {unsound or 'a later update'}; "
        "parameters were left as they were before it, and the last checkpoint is intact. Lower "
        "policy_optimizer.learning_rate or critic_optimizer.learning_rate and run again in a new "
        f"workdir. Trajectories of the batch: {trajectories[0].key} ... {trajectories[-1].key}"
    )
