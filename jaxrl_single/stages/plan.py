"""What a run would do, in words, without doing any of it."""

from __future__ import annotations

import jax
import ml_collections

from jaxrl_single.algorithms import row as row_lib
from jaxrl_single.stages import addresses, build, demonstrations
from jaxrl_single.stages import world as world_lib
from jaxrl_single.trainer import optim


def describe(config: ml_collections.ConfigDict) -> str:
    """Config, parameter groups and the stages, as text; shapes only, no memory is taken."""
    world = world_lib.make(config)
    policy, critic = build.models(config, world.language.vocab_size)
    algorithm = build.algorithm(config)
    parts = ["config", _indent(str(config)), "policy parameters"]
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    parts.append(_indent(optim.table(shapes, optim.label(shapes, optim.ALL_TRAIN))))
    if algorithm.needs_critic:
        shapes = jax.eval_shape(critic.init, jax.random.key(0))
        labels = optim.label(shapes, tuple(config.critic.rules))
        parts += ["critic parameters during RL", _indent(optim.table(shapes, labels))]
    parts += [f"algorithm {algorithm.name}", _indent(_hyperparameters(algorithm))]
    held_out = min(config.eval.num_tasks, len(world.eval_tasks))
    parts += ["plan", _indent("\n".join(_stages(config, algorithm, held_out)))]
    return "\n".join(parts)


def _hyperparameters(algorithm: row_lib.Algorithm) -> str:
    values = row_lib.hyperparameters(algorithm)
    return "\n".join(f"{name} = {value}" for name, value in values.items())


def _stages(
    config: ml_collections.ConfigDict, algorithm: row_lib.Algorithm, held_out: int
) -> list[str]:
    value, rl, batch = config.value_pretraining, config.rl, config.batch
    lines = [f"1. warm start: {demonstrations.plan(config)}"]
    if algorithm.needs_critic:
        lines.append(
            f"2. value pretraining: {value.num_trajectories} rollouts of the warm policy, at most "
            f"{value.max_steps} steps"
        )
    else:
        lines.append("2. value pretraining: none, the algorithm has no critic")
    lines += [
        f"3. RL in {_processes(config)}: {rl.num_steps} steps of {batch.num_trajectories} "
        f"trajectories, the first {rl.critic_only_steps} for the critic alone, staleness at most "
        f"{rl.max_staleness}",
        f"4. final evaluation: {held_out} held-out tasks at temperature "
        f"{config.rollout.temperature}",
    ]
    return lines


def _processes(config: ml_collections.ConfigDict) -> str:
    if config.mode == "sync":
        return "one process"
    if config.rollout.client == "in_process":
        return "trainer and sampler processes"
    names = ", ".join(["trainer", *addresses.sampler_names(config), "rollout"])
    others = ", ".join(config.rollout.sampler_urls)
    return f"processes {names}" + (f" with the samplers {others}" if others else "")


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
