"""The parts of the trainer's process, made from the config."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import ml_collections

from jaxrl_single import checkpoint as checkpoint_lib
from jaxrl_single import store as store_lib
from jaxrl_single import types, workdir
from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.algorithms import update as update_lib
from jaxrl_single.data import packing, prompts, ticket_files, tickets
from jaxrl_single.models import api
from jaxrl_single.stages import (
    backends,
    best,
    build,
    demonstrations,
    keeping,
    records,
    rollouts,
    sampler_process,
    waiting,
    warm_start,
)
from jaxrl_single.stages import world as world_lib
from jaxrl_single.trainer import kl_step, optim
from jaxrl_single.trainer import state as state_lib
from jaxrl_single.trainer import step as step_lib
from jaxrl_single.weights import base as weights_base
from jaxrl_single.weights import filesystem


def optimizers(
    config: ml_collections.ConfigDict,
    algorithm: row_lib.Algorithm,
    policy_params: api.Params,
    critic_params: api.Params,
) -> tuple[optim.Optimizer, optim.Optimizer | None]:
    """Of RL, for policy and critic; no critic optimiser for algorithms without a critic."""
    policy = build.optimizer(config.policy_optimizer, policy_params)
    if not algorithm.needs_critic:
        return policy, None
    rules = build.critic_rules(config)
    return policy, build.optimizer(config.critic_optimizer, critic_params, rules=rules)


def make_records(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    collected: rollouts.Rollouts,
    weights: filesystem.FileWeights,
) -> records.Records:
    """What the trainer writes for people, and the policy that it keeps of the best evaluation."""
    kept = best.Best(paths, weights, enabled=config.checkpoint.keep_best)
    return records.Records(paths, collected, kept)


def fresh_state(
    config: ml_collections.ConfigDict,
    algorithm: row_lib.Algorithm,
    policy_params: api.Params,
    critic_params: api.Params,
) -> state_lib.TrainState:
    """The state before the first step of RL, not placed; fresh optimisers."""
    policy_optimizer, critic_optimizer = optimizers(config, algorithm, policy_params, critic_params)
    return state_lib.init_train_state(
        policy_params,
        critic_params if critic_optimizer else {},
        policy_optimizer=policy_optimizer,
        critic_optimizer=critic_optimizer,
        reference_params=policy_params if "ref_logprobs" in algorithm.reads else {},
        algorithm_state=build.algorithm_state(algorithm),
        key=jax.random.key(config.seed),
    )


def train_step(
    config: ml_collections.ConfigDict,
    algorithm: row_lib.Algorithm,
    policy: api.Policy,
    critic: api.Critic,
    *,
    state_shardings: Any,
) -> step_lib.Step:
    """The jitted step of RL; see trainer/step.py."""
    policy_optimizer, critic_optimizer = optimizers(
        config,
        algorithm,
        jax.eval_shape(policy.init, jax.random.key(0)),
        jax.eval_shape(critic.init, jax.random.key(0)),
    )
    return step_lib.make_train_step(
        policy,
        critic if critic_optimizer else None,
        algorithm,
        policy_optimizer=policy_optimizer,
        critic_optimizer=critic_optimizer,
        critic_first=config.rl.critic_first,
        chunk=warm_start.LOGPROB_CHUNK,
        kl=(
            kl_step.Budget(config.rl.kl_budget, config.rl.kl_max_scale)
            if config.rl.kl_budget
            else None
        ),
        state_shardings=state_shardings,
    )


def make_rollouts(
    config: ml_collections.ConfigDict,
    paths: workdir.Workdir,
    world: world_lib.World,
    policy: api.Policy,
    weights: weights_base.WeightStore,
    *,
    stopping: Callable[[], bool],
    tick: Callable[[], None],
) -> rollouts.Rollouts:
    """The trainer's end of rollout, with the backend that the mode asks for."""
    run_id = workdir.run_id_of(paths)
    store = store_lib.TrajectoryStore(paths.trajectories, run_id)
    tasks = prompts.TaskIterator(world.rl_tasks, seed=config.seed)
    backend: backends.Backend
    if config.mode == "sync":
        backend = backends.InlineBackend(
            world,
            store,
            functools.partial(
                sampler_process.make_engine, config, policy, record=build.record(config)
            ),
            max_in_flight=config.rollout.max_in_flight,
            stopping=stopping,
            tick=tick,
            no_progress_s=config.trainer.no_progress_s,
            stop_timeout_s=config.supervisor.stop_timeout_s,
        )
    else:
        backend = backends.FileBackend(paths.tickets, stopping=stopping, tick=tick)
    return rollouts.Rollouts(
        book=tickets.TicketBook(run_id, tasks, max_attempts=config.rollout.max_attempts),
        store=store,
        weights=weights,
        backend=backend,
        eval_tasks=world.eval_tasks,
        settings=rollout_settings(config),
    )


def demonstrations_of(
    config: ml_collections.ConfigDict, world: world_lib.World, *, look: Callable[[], None]
) -> list[types.Trajectory]:
    """What the warm start imitates: of the file, or played by the script.

    Args:
      look: see `warm_start.demonstrations`.

    Raises:
      waiting.RolloutFailed: an episode failed, or the file has changed and can't be used.
    """
    section = config.warm_start
    if section.demonstrations_file:
        try:
            return demonstrations.read(config, world).trajectories
        except demonstrations.InvalidDemonstrations as error:
            raise waiting.RolloutFailed(str(error)) from error
    return warm_start.demonstrations(
        world,
        count=section.num_demonstrations,
        mistake_rate=section.mistake_rate,
        seed=config.seed,
        look=look,
    )


def warm_policy_of(root: str, params: api.Params) -> api.Params:
    """The warm-started policy of another run, so that runs can be compared from one start.

    Args:
      root: its workdir.
      params: arrays or shapes of the same model.

    Raises:
      checkpoint.CheckpointError: it holds no warm start, or one of another model.
    """
    directory = workdir.Workdir(root).stage_checkpoints("warm_start")
    checkpoints = checkpoint_lib.Checkpoints(directory, keep=1) if directory.is_dir() else None
    if checkpoints is None or checkpoints.latest_step() is None:
        raise checkpoint_lib.CheckpointError(
            f"warm_start.workdir={root} holds no finished warm start; run that workdir first"
        )
    return checkpoints.restore(params)[0]


def prefer_tasks(
    algorithm: row_lib.Algorithm, book: tickets.TicketBook, algorithm_state: Any
) -> None:
    """Lets the order of tasks follow the weights of a stateful advantage, if it has any."""
    weights = update_lib.task_weights(algorithm, algorithm_state)
    if weights is not None:
        weights = jax.device_get(weights / weights.max())
        book.prefer(lambda task: float(weights[packing.task_number(task.id)]))


def withdraw_tickets(paths: workdir.Workdir, store: store_lib.TrajectoryStore) -> list[int]:
    """Withdraws what a trainer before this one had asked for.

    Returns:
      Every ticket number of this run that has left a trace on disk.
    """
    keys = store.keys()
    stored = [int(key.partition("-")[0]) for key in keys]
    return [*ticket_files.clear(paths.tickets), *stored]


def rollout_settings(config: ml_collections.ConfigDict) -> rollouts.Settings:
    """What the trainer's end of rollout reads of a config."""
    sync = config.mode == "sync"
    # In sync mode the queue is what makes work stale: batches wait `lag` steps in it.
    if sync:
        open_batches = config.sync.lag + 1
    else:
        open_batches = config.rollout.open_batches or config.rl.max_staleness + 1
    return rollouts.Settings(
        batch_size=config.batch.num_trajectories,
        group_size=config.rl.group_size,
        open_batches=open_batches,
        max_staleness=config.rl.max_staleness,
        temperature=config.rollout.temperature,
        max_consecutive_errors=config.rollout.max_consecutive_errors,
        no_progress_s=config.trainer.no_progress_s,
        keep_versions=config.weights.keep,
        in_ticket_order=sync,
        keep=keeping.Rule(config.trajectories.keep, config.trajectories.every_steps),
    )
