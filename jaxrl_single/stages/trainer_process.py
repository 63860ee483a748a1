"""The trainer's process: warm start -> value pretraining -> RL -> final evaluation.

Each stage leaves a checkpoint and is skipped when its checkpoint is there. The order of a resume:
  1. WORKDIR/checkpoints/rl, the newest: parameters, optimisers, step, tickets, task position
  2. WORKDIR/checkpoints/value_pretraining: policy, critic, tickets, task position
  3. WORKDIR/checkpoints/warm_start: policy
  4. nothing: random parameters
"""

from __future__ import annotations

import functools
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_collections

from jaxrl_single import checkpoint as checkpoint_lib
from jaxrl_single import types, workdir
from jaxrl_single.data import token_batch
from jaxrl_single.models import api
from jaxrl_single.stages import (
    build,
    demonstrations,
    gate,
    initial,
    keeping,
    placement,
    records,
    resuming,
    rl,
    sampler_process,
    trainer_parts,
    unfinished,
    value_pretraining,
    waiting,
    warm_start,
)
from jaxrl_single.stages import world as world_lib
from jaxrl_single.trainer import compilations, score
from jaxrl_single.trainer import state as state_lib
from jaxrl_single.weights import base as weights_base
from jaxrl_single.weights import filesystem

FOR_PEOPLE = (
    workdir.CannotWrite,
    workdir.BrokenFile,
    checkpoint_lib.CheckpointError,
    gate.GateFailed,
    rl.Diverged,
    waiting.RolloutFailed,
    weights_base.InvalidWeights,
)
_log = logging.getLogger(__name__)
_GATE_EPISODES = 16


def run(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    *,
    stopping: Callable[[], bool],
    beat: Callable[[], None],
) -> None:
    """Runs what is left of the stages.

    Raises:
      waiting.Stopped: asked to stop; a checkpoint was written if there was anything to save.
    """
    Trainer(config, paths, stopping=stopping, beat=beat).run()


class Trainer:
    """The parts of the trainer's process; one method per stage."""

    def __init__(
        self,
        config: ml_collections.ConfigDict,
        paths: workdir.Workdir,
        *,
        stopping: Callable[[], bool],
        beat: Callable[[], None],
    ):
        self.config = config
        self.paths = paths
        self.sync = config.mode == "sync"
        self._stopping = stopping
        self._beat = beat
        self._compilations = compilations.CompilationCounter()
        self.world = world_lib.make(config, workdir.began(paths))
        world_lib.save_text(config, self.world, paths.tokenizer)
        self.policy, self.critic = build.models(config, self.world.language.vocab_size)
        self.algorithm = build.algorithm(config)
        self.placement = placement.make(config)
        self.pack = build.packer(config)
        self.routing = build.routing(config, self.policy.config)
        self._pack_evaluation = build.packer(config, routing=self.routing)
        self.weights = filesystem.FileWeights(
            sampler_process.weights_directory(config, paths), workdir.run_id_of(paths)
        )
        self.rollouts = trainer_parts.make_rollouts(
            config, paths, self.world, self.policy, self.weights, stopping=stopping, tick=beat
        )
        self.records = trainer_parts.make_records(config, paths, self.rollouts, self.weights)
        self.keeper = keeping.Keeper(paths, max_gb=config.trajectories.max_gb)
        self._known_evaluations: list[str] = []
        self._resuming = resuming.Resuming(
            paths, self.rollouts, self.weights, self.keeper, sync=self.sync
        )
        self.mismatch = score.make_mismatch(self.policy, chunk=warm_start.LOGPROB_CHUNK)

    def run(self) -> None:
        """All stages in order."""
        self._known_evaluations = self.records.resume(records.covered(self.paths, self.config))
        rl_checkpoints = self._checkpoints("rl")
        if rl_checkpoints.latest_step() is not None:
            state = self._resume_rl(rl_checkpoints)
        else:
            policy_params = self._warm_start()
            state = self._value_pretraining(policy_params)
        loop = self._loop(rl_checkpoints, state)
        if int(state.step) < self.config.rl.num_steps:
            self._gate(state.policy_params)
            state = rl.run(loop, state)
        self._final_evaluation(loop, state)
        self.records.close()

    # Stages.

    def _warm_start(self) -> api.Params:
        checkpoints = self._checkpoints("warm_start")
        shapes = initial.abstract_params(self.policy.init, self.placement.parameters)
        section = self.config.warm_start
        if checkpoints.latest_step() is not None:
            return checkpoints.restore(shapes)[0]
        if section.workdir:
            params = trainer_parts.warm_policy_of(section.workdir, shapes)
        else:
            try:
                params = initial.policy_params(self.config, self.policy, self.placement.parameters)
            except ValueError as error:  # of the checkpoint, for people to read
                raise weights_base.InvalidWeights(f"model.path: {error}") from error
            if demonstrations.kind(self.config) != "none":
                params = self._imitate(params)
        checkpoints.save(section.num_steps, params, {})
        self._finished("warm_start")
        return params

    def _imitate(self, params: api.Params) -> api.Params:
        section = self.config.warm_start
        self._say("warm_start", 0, section.num_steps, "collecting demonstrations")
        demos = trainer_parts.demonstrations_of(self.config, self.world, look=self._look)
        return warm_start.train(
            self.policy,
            params,
            demos,
            section,
            build.packer(self.config, num_trajectories=section.batch_size),
            placement=self.placement,
            seed=self.config.seed,
            report=functools.partial(self._report, "warm_start", section.num_steps),
            unfinished=self._checkpoints(records.UNFINISHED["warm_start"]),
        )

    def _value_pretraining(self, policy_params: api.Params) -> state_lib.TrainState:
        checkpoints = self._checkpoints("value_pretraining")
        section, config = self.config.value_pretraining, self.config
        critic_params = self.critic.from_policy(policy_params, jax.random.key(config.seed + 1))
        if checkpoints.latest_step() is not None:
            critic_params, metadata = checkpoints.restore(critic_params)
            self._restore_rollouts(metadata, policy_params)
            return self._fresh_state(policy_params, critic_params)
        taken = self._taken_before(policy_params)
        try:
            if self.algorithm.needs_critic and section.max_steps:
                critic_params = self._pretrain_critic(critic_params, taken)
            episodes = self.rollouts.take_evaluation("warm_start@0", wait=True)
        except waiting.Stopped:
            stage = records.UNFINISHED["value_pretraining"]
            unfinished.save(self._checkpoints(stage), taken, self._metadata())
            raise
        self._record_evaluation("warm_start", 0, policy_params, episodes)
        checkpoints.save(0, critic_params, self._metadata())
        self._finished("value_pretraining")
        self.rollouts.delete_covered()
        return self._fresh_state(policy_params, critic_params)

    def _taken_before(self, policy_params: api.Params) -> list[types.Trajectory]:
        """Rollouts of the warm policy that a start which was stopped had taken already."""
        stage, purpose = records.UNFINISHED["value_pretraining"], "warm_start@0"
        metadata = None
        if self.paths.stage_checkpoints(stage).exists():
            metadata = unfinished.metadata(self._checkpoints(stage))
        if metadata is None:
            self._resuming.reset()
            self.rollouts.publish(jax.device_get(policy_params), step=0)
        else:
            self._restore_rollouts(metadata, policy_params, held=metadata["taken"])
        if purpose not in self.rollouts.open_evaluations():
            self.rollouts.request_evaluation(
                purpose, num_tasks=self.config.eval.num_tasks, version=self.rollouts.version
            )
        return unfinished.read(self.rollouts.store, metadata["taken"]) if metadata else []

    def _pretrain_critic(
        self, critic_params: api.Params, trajectories: list[types.Trajectory]
    ) -> api.Params:
        """Trains the critic; what it takes is added to the trajectories that are there."""
        section, purpose = self.config.value_pretraining, "value_pretraining"
        self._say(purpose, 0, section.max_steps, "sampling rollouts of the warm policy")
        while (missing := section.num_trajectories - len(trajectories)) > 0:
            size = min(missing, self.config.batch.num_trajectories)
            taken = self.rollouts.take(size, purpose=purpose, wanted=missing, whole_groups=False)
            trajectories += taken.trajectories
        critic_params, explained = value_pretraining.train(
            self.critic,
            critic_params,
            trajectories,
            section,
            self.pack,
            placement=self.placement,
            batch_size=self.config.batch.num_trajectories,
            discount=self.algorithm.advantage.hyperparameters["discount"],
            critic_lambda=self.algorithm.advantage.hyperparameters["critic_lambda"],
            seed=self.config.seed,
            report=functools.partial(self._report, purpose, section.max_steps),
        )
        _log.info("value pretraining: held-out explained variance %.3f", explained)
        return critic_params

    def _final_evaluation(self, loop: rl.Loop, state: state_lib.TrainState) -> None:
        step = int(state.step)
        if not step:  # the policy is the warm one, which was evaluated
            self._say("done", step, step, "")
            return
        purpose = f"final@{step}"
        recorded = [e for e in workdir.read_evals(self.paths) if e.stage == "final"]
        if not any(evaluation.step == step for evaluation in recorded):
            self._say("final", step, step, "final evaluation")
            if purpose not in self.rollouts.open_evaluations():
                self.rollouts.request_evaluation(
                    purpose, num_tasks=self.config.eval.num_tasks, version=self.rollouts.version
                )
            for earlier in self.rollouts.open_evaluations():
                episodes = self.rollouts.take_evaluation(earlier, wait=True)
                rl.record_evaluation(loop, earlier, episodes)
            self.rollouts.delete_covered()  # their results stay from now on, and so may they
            self.keeper.bound()
        self._say("done", step, step, "")

    # Resume and checkpoints.

    def _resume_rl(self, checkpoints: checkpoint_lib.Checkpoints) -> state_lib.TrainState:
        key = jax.random.key(self.config.seed)
        params = [
            initial.random_params(model.init, key, self.placement.parameters)
            for model in (self.policy, self.critic)
        ]
        state, metadata = checkpoints.restore(self._fresh_state(*params))
        self._restore_rollouts(metadata, state.policy_params)
        return state

    def _restore_rollouts(
        self, metadata: dict[str, Any], params: api.Params, *, held: Sequence[str] = ()
    ) -> None:
        self._resuming.restore(metadata, params, self._known_evaluations, held=held)

    def _fresh_state(
        self, policy_params: api.Params, critic_params: api.Params
    ) -> state_lib.TrainState:
        state = trainer_parts.fresh_state(self.config, self.algorithm, policy_params, critic_params)
        return self.placement.state(state)

    def _save(
        self, checkpoints: checkpoint_lib.Checkpoints, step: int, state: state_lib.TrainState
    ) -> float:
        began = time.monotonic()
        # What was consumed after a step's checkpoint is not covered by it.
        if checkpoints.save(step, state, self._metadata(rl=step)):
            self.rollouts.delete_covered()
            self.keeper.bound()
        return time.monotonic() - began

    def _metadata(self, rl: int | None = None) -> dict[str, Any]:
        """What a checkpoint keeps beside arrays; `steps` are the newest lines of metrics.jsonl."""
        section = self.config
        steps = {
            "warm_start": section.warm_start.num_steps,
            "value_pretraining": section.value_pretraining.max_steps,
            "rl": rl,
        }
        return {
            "rollouts": self.rollouts.state(),
            "steps": steps,
            "counts": self.rollouts.book.counts(),
            "policy_version": self.rollouts.version,
            "params_sha256": self.rollouts.params_sha256,
        }

    # Parts.

    def _loop(
        self, checkpoints: checkpoint_lib.Checkpoints, state: state_lib.TrainState
    ) -> rl.Loop:
        recorded = build.record(self.config).widths(self.policy.config.vocab_size)
        return rl.Loop(
            config=self.config,
            rollouts=self.rollouts,
            train_step=trainer_parts.train_step(
                self.config,
                self.algorithm,
                self.policy,
                self.critic,
                state_shardings=self.placement.shardings(state),
            ),
            pack=build.packer(
                self.config,
                num_minibatches=self.algorithm.num_minibatches,
                recorded=recorded,
                routing=self.routing,
            ),
            pack_evaluation=self.pack_evaluation,
            place=self.placement.batch,
            mismatch=self.mismatch,
            fetch=lambda version: self.placement.put(self.weights.fetch(version)[0]),
            records=self.records,
            keeper=self.keeper,
            save=functools.partial(self._save, checkpoints),
            prefer_tasks=functools.partial(
                trainer_parts.prefer_tasks, self.algorithm, self.rollouts.book
            ),
            compilations=lambda: self._compilations.count,
            sampler_stats=functools.partial(sampler_process.read_stats, self.paths),
        )

    def pack_evaluation(self, episodes: list[types.Trajectory]) -> token_batch.TokenBatch:
        """A batch on the devices of what evaluations record: tokens, and the choice of experts."""
        return self.placement.batch(self._pack_evaluation(episodes))

    def _finished(self, stage: str) -> None:
        """A stage has its checkpoint: what was kept of it while it was unfinished may go."""
        directory = self.paths.stage_checkpoints(records.UNFINISHED[stage])
        shutil.rmtree(directory, ignore_errors=True)

    def _checkpoints(self, stage: str) -> checkpoint_lib.Checkpoints:
        return checkpoint_lib.Checkpoints(
            self.paths.stage_checkpoints(stage), keep=self.config.checkpoint.keep
        )

    def _gate(self, params: api.Params) -> None:
        """Compares sampler and trainer on a few held-out episodes of the published weights."""
        if not self.config.gate.enabled:
            return
        num_tasks = min(_GATE_EPISODES, self.config.batch.num_trajectories)
        self._say("rl", 0, self.config.rl.num_steps, "comparing sampler and trainer")
        self.rollouts.request_evaluation(
            "gate@0", num_tasks=num_tasks, version=self.rollouts.version, series="gate"
        )
        episodes = self.rollouts.take_evaluation("gate@0", wait=True)
        found = gate.measure(self.mismatch, params, episodes, self.pack_evaluation, limit=num_tasks)
        errors = [episode.error.message.splitlines()[0] for episode in episodes if episode.error]
        gate.check(
            found,
            self.config.gate,
            temperature=self.config.rollout.temperature,
            error=errors[0] if errors else "",
        )
        _log.info("gate passed: %s", found)

    def _record_evaluation(self, stage, step, params, episodes) -> None:
        extra = gate.measure(
            self.mismatch,
            params,
            episodes,
            self.pack_evaluation,
            limit=self.config.batch.num_trajectories,
        )
        version = self.rollouts.version
        result = self.records.evaluation(stage, step, version, episodes, extra)
        _log.info("%s: held-out success %s", stage, records.describe(result))

    def _report(self, stage: str, num_steps: int, step: int, metrics: dict[str, Any]) -> None:
        """One step of a supervised stage."""
        self.records.metrics(stage, step, metrics)
        self.records.status(stage, step, num_steps)
        self._look()

    def _look(self) -> None:
        self._beat()
        if self._stopping():
            raise waiting.Stopped

    def _say(self, stage: str, step: int, num_steps: int, text: str) -> None:
        self._beat()
        self.records.status(stage, step, num_steps, text)
