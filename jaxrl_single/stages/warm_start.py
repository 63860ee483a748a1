"""Stage 1: supervised training on scripted demonstrations, mistakes included.

RL needs a policy that succeeds sometimes. The demonstrations contain mistakes at a known rate, so
the imitator ends with a success rate between the two ends, and what RL adds can be seen.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import jax
import ml_collections
import numpy as np

from jaxrl_single import checkpoint as checkpoint_lib
from jaxrl_single import types
from jaxrl_single.envs import user_code
from jaxrl_single.models import api
from jaxrl_single.rollout import episode, scripted
from jaxrl_single.stages import placement as placement_lib
from jaxrl_single.stages import waiting
from jaxrl_single.stages import world as world_lib
from jaxrl_single.trainer import optim, supervised_step
from jaxrl_single.trainer import state as state_lib

LOGPROB_CHUNK = 1024  # tokens whose logits exist at one time
_AT_ONCE = 1024  # episodes of the script that run together
_LOOK_S = 0.5  # between looks at them

Report = Callable[[int, dict[str, float]], None]  # (step, metrics)


def demonstrations(
    world: world_lib.World,
    *,
    count: int,
    mistake_rate: float,
    seed: int,
    look: Callable[[], None] = lambda: None,
) -> list[types.Trajectory]:
    """Plays `count` training tasks by the script, through the same code as the policy's episodes.

    Args:
      look: called all the time; what it raises ends the episodes.

    Raises:
      waiting.RolloutFailed: an episode failed; it carries the traceback of the first.
      ValueError: the environment has no script.
    """
    if world.make_script is None:
        raise ValueError("this environment has no script: set warm_start.num_steps=0")
    numbers = range(count)
    played = asyncio.run(_play_all(world, numbers, mistake_rate, seed, look))
    failed = [trajectory for trajectory in played if trajectory.error is not None]
    if failed:
        raise waiting.RolloutFailed(
            f"{len(failed)} of {count} demonstrations failed; the first, of task "
            f"{failed[0].task_id!r}:\n{failed[0].error.message}"
        )
    return played


def train(
    policy: api.Policy,
    params: api.Params,
    demos: list[types.Trajectory],
    section: ml_collections.ConfigDict,
    pack: Callable[[list[types.Trajectory]], object],
    *,
    placement: placement_lib.Placement,
    seed: int,
    report: Report,
    unfinished: checkpoint_lib.Checkpoints | None = None,
) -> api.Params:
    """Imitates the demonstrations for `section.num_steps` steps and returns the parameters.

    Args:
      report: called after each step; may raise `waiting.Stopped`.
      unfinished: holds the state of a training that was stopped, from which it goes on.
    """
    schedule = optim.warmup(
        section.learning_rate,
        warmup_steps=max(1, round(0.05 * section.num_steps)),
        decay="cosine",
        decay_steps=section.num_steps,
        final_fraction=0.1,
    )
    adamw = optim.adamw(schedule, b1=0.9, b2=0.95, weight_decay=section.weight_decay)
    optimizer = optim.build(
        params, rules=optim.ALL_TRAIN, transforms={"train": adamw}, clip_norm=1.0
    )
    state = placement.state(state_lib.init_model_state(params, optimizer))
    step = supervised_step.make_supervised_step(
        policy, optimizer, chunk=LOGPROB_CHUNK, state_shardings=placement.shardings(state)
    )
    rng = np.random.default_rng([seed, 1])
    done = unfinished.latest_step() if unfinished else None
    if done:
        state, _ = unfinished.restore(state)
    for number in range(section.num_steps):
        chosen = rng.choice(len(demos), size=section.batch_size, replace=False)
        if number < (done or 0):  # only the order of the demonstrations is drawn again
            continue
        state, metrics = step(state, placement.batch(pack([demos[i] for i in chosen])))
        try:
            report(number + 1, jax.device_get(metrics))
        except waiting.Stopped:
            if unfinished:
                unfinished.save(number + 1, state, {})
            raise
    return state.params


async def _play_all(
    world: world_lib.World,
    numbers: range,
    mistake_rate: float,
    seed: int,
    look: Callable[[], None],
) -> list[types.Trajectory]:
    play = functools.partial(_play, world, mistake_rate=mistake_rate, seed=seed)
    user_code.contain_tasks()
    played = []
    for start in range(0, len(numbers), _AT_ONCE):
        batch = numbers[start : start + _AT_ONCE]
        tasks = [asyncio.create_task(play(number)) for number in batch]
        running = set(tasks)
        while running:
            look()
            _, running = await asyncio.wait(running, timeout=_LOOK_S)
        played += [
            episode.outcome(_ticket(world, number), task, source="script")
            for number, task in zip(batch, tasks, strict=True)
        ]
    return played


async def _play(
    world: world_lib.World, number: int, *, mistake_rate: float, seed: int
) -> types.Trajectory:
    ticket = _ticket(world, number)
    rng = np.random.default_rng([seed, 2, number])
    try:
        with user_code.watched("making script and environment", world.limits.block_s):
            script = world.make_script(ticket.task, mistake_rate=mistake_rate, rng=rng)
            env = world.make_env()
    except BaseException as error:
        return episode.failed_episode(ticket, error, kind="env", source="script")
    client = scripted.ScriptedClient(script, world.language)
    return await episode.run_episode(
        ticket, env, client, world.language, world.limits, source="script"
    )


def _ticket(world: world_lib.World, number: int) -> types.Ticket:
    # From the far end of the training tasks, so that RL meets fresh ones first.
    task = world.train_tasks[len(world.train_tasks) - 1 - number % len(world.train_tasks)]
    return types.Ticket("demonstrations", number, 0, task, purpose="warm_start")
