"""What algorithms and recording cost, as ratios within one run.

python benchmarks/cost.py [--rows=128] [--length=4096] [--algorithms=sao,flash_reinforce,...]

1. Advantage, keep rule and objective with its gradient, jitted alone on [rows, length] tokens,
   against a whole train step of the tiny mixture of experts. The step is timed on two rows and
   scaled to all, since its time is proportional to their number.
2. A chunk of decode steps of the tiny model that records M = 128 auxiliary draws, against one that
   records nothing; both with every slot sampling.

Times are medians; the two sides of a ratio are measured in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import jax
import numpy as np

from configs import common
from jaxrl_single import types
from jaxrl_single.algorithms import arrays as arrays_lib
from jaxrl_single.algorithms import table, update
from jaxrl_single.data import packing
from jaxrl_single.sampler import decode, restrict
from jaxrl_single.stages import build, trainer_parts
from jaxrl_single.trainer import state as state_lib

VOCABULARY = 32
EPISODE = 512  # tokens of a trajectory
ROWS_OF_STEP = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument(
        "--algorithms", default="sao,vapo,flash_reinforce,running_mean,klpo,klpo_sequence,grpo"
    )
    arguments = parser.parse_args()
    step = step_seconds(arguments.length) * arguments.rows / ROWS_OF_STEP
    print(f"train step (sao), {arguments.rows} x {arguments.length} tokens: {step:.1f} s")
    for name in arguments.algorithms.split(","):
        own = algorithm_seconds(table.get(name), arguments.rows, arguments.length)
        print(f"{name}: advantage, keep rule and objective {own:.3f} s, {own / step:.2%} of it")
    plain, recording = decode_seconds()
    print(
        f"decode chunk: {1e3 * plain:.2f} ms, with 128 draws per token {1e3 * recording:.2f} ms, "
        f"{recording / plain - 1:+.1%}"
    )


def step_seconds(length: int) -> float:
    """Of a SAO step on ROWS_OF_STEP rows."""
    config = common.base()
    config.batch.update({"row_length": length, "rows_per_micro_batch": ROWS_OF_STEP})
    config.batch.update({"row_buckets": (ROWS_OF_STEP,)})
    count = ROWS_OF_STEP * length // EPISODE
    batch = build.packer(config, num_trajectories=count)([episode(i) for i in range(count)])
    policy, critic = build.models(config, VOCABULARY)
    algorithm = build.algorithm(config)
    policy_params, critic_params = policy.init(jax.random.key(0)), critic.init(jax.random.key(1))
    policy_optimizer, critic_optimizer = trainer_parts.optimizers(
        config, algorithm, policy_params, critic_params
    )
    state = state_lib.init_train_state(
        policy_params,
        critic_params,
        policy_optimizer=policy_optimizer,
        critic_optimizer=critic_optimizer,
        reference_params={},
        algorithm_state={},
        key=jax.random.key(2),
    )
    step = trainer_parts.train_step(config, algorithm, policy, critic, state_shardings=None)

    def once():
        nonlocal state
        state, metrics, _ = step(state, batch, np.bool_(False))
        return metrics

    return medians(once, repeats=3)[0]


def algorithm_seconds(algorithm, rows: int, length: int) -> float:
    """Of the row's own work on a whole batch."""
    trajectories = rows * length // EPISODE
    batch = packing.pack(
        [episode(i) for i in range(trajectories)],
        num_trajectories=trajectories,
        row_length=length,
        rows_per_micro_batch=rows,
        row_buckets=(rows,),
        on_limit="terminal",
    )
    batch = jax.device_put(batch)
    rng = np.random.default_rng(0)
    shape = batch.tokens.shape[1:]
    draws = {}
    if "aux" in algorithm.needs:
        noise = -rng.exponential(size=(*shape, 16)).astype(np.float32)
        draws = {"aux_policy_logprobs": noise, "aux_rollout_logprobs": noise - 0.1}
    tokens = dataclasses.asdict(batch)
    tokens = {name: tokens[name][0] for name in tokens if np.shape(tokens[name])[1:] == shape}
    work = jax.jit(lambda *inputs: own_work(algorithm, batch, draws, *inputs))
    logprobs = tokens["rollout_logprobs"] + 0.01
    state = update.init_state(algorithm, num_tasks=packing.NUM_TASK_NUMBERS)
    return medians(lambda: work(tokens, logprobs, state), repeats=5)[0]


def own_work(algorithm, batch, draws, tokens, logprobs, state):
    mask, index = tokens["action_mask"], tokens["trajectory_index"]
    facts = {"reward": batch.reward, "group": batch.group, "valid": batch.valid}
    output = update.advantages(
        algorithm,
        arrays_lib.AdvantageArrays(
            rewards=tokens["rewards"],
            action_mask=mask,
            trajectory_index=index,
            task=batch.task,
            values=logprobs,
            bootstrap_values=batch.reward,
            turn_ids=tokens["turn_ids"],
            log_ratio=logprobs - tokens["rollout_logprobs"],
            **facts,
        ),
        state,
    )
    lengths, denominator = update.reduction_inputs(algorithm, mask, index, len(batch.valid))
    inputs = arrays_lib.PolicyArrays(
        policy_logprobs=logprobs,
        policy_entropies=tokens["entropies"],
        rollout_logprobs=tokens["rollout_logprobs"],
        entropies=tokens["entropies"],
        advantages=output.advantages,
        loss_mask=mask,
        trajectory_index=index,
        trajectory_lengths=lengths,
        denominator=denominator,
        **facts,
        **draws,
    )
    return update.score_coefficients(algorithm, inputs, output.state)


def episode(number: int) -> types.Trajectory:
    """Turns of 48 observed and 16 sampled tokens."""
    rng = np.random.default_rng(number)
    mask = np.arange(EPISODE) % 64 >= 48
    rewards = np.zeros(EPISODE, np.float32)
    rewards[-1] = number % 2
    return types.Trajectory(
        run_id="benchmark",
        ticket=number,
        attempt=0,
        task_id=f"task/{number // 8}",
        group_id=number // 8,
        tokens=rng.integers(0, VOCABULARY, EPISODE).astype(np.int32),
        action_mask=mask,
        rollout_logprobs=np.where(mask, -rng.exponential(size=EPISODE), 0).astype(np.float32),
        policy_versions=np.where(mask, 0, types.NOT_SAMPLED).astype(np.int32),
        turn_ids=(np.arange(EPISODE) // 64).astype(np.int32),
        rewards=rewards,
        entropies=np.where(mask, 1.0, 0.0).astype(np.float32),
        segment_ids=np.ones(EPISODE, np.int32),
        reward=float(rewards[-1]),
        terminated=True,
        truncated=False,
    )


def decode_seconds(num_slots: int = 40, num_steps: int = 6) -> tuple[float, float]:
    """Of a chunk that records nothing, and of one that records 128 draws per token."""
    config = common.base()
    policy, _ = build.models(config, VOCABULARY)
    serving = policy.serving(policy.init(jax.random.key(0)))
    pages_per_slot = -(-config.env.max_tokens // config.sampler.page_size)
    num_pages = num_slots * pages_per_slot
    ones = np.ones(num_slots, np.int32)
    numbers = np.arange(num_slots, dtype=np.uint32)
    rows = decode.Rows(
        tokens=np.ones((num_steps, num_slots), np.int32),
        num_known=ones,
        positions=40 * ones,
        active=ones.astype(bool),
        budgets=100 * ones,
        temperatures=ones.astype(np.float32),
        seeds=0 * numbers,
        tickets=numbers,
        attempts=0 * numbers,
        turns=0 * numbers,
        indices=0 * numbers,
        stop_tokens=np.full((num_slots, 1), decode.NO_TOKEN, np.int32),
        forced=np.full((num_steps, num_slots), decode.NO_TOKEN, np.int32),
        wanted=ones.astype(bool),
        limits=restrict.Limits.none(num_slots),
        table=np.arange(num_pages, dtype=np.int32).reshape(num_slots, pages_per_slot),
        owner=np.repeat(np.arange(num_slots, dtype=np.int32), pages_per_slot),
        index=np.tile(np.arange(pages_per_slot, dtype=np.int32), num_slots),
    )

    def chunk(record):
        cache = policy.init_cache(num_pages, config.sampler.page_size)

        def once():
            nonlocal cache
            cache, sampled = decode.decode_chunk(
                policy, serving, cache, rows, num_steps=num_steps, record=record
            )
            return sampled

        return once

    plain, recording = chunk(types.RECORD_NOTHING), chunk(types.Record(num_aux=128))
    found = medians(plain, recording, repeats=200)
    return found[0], found[1]


def medians(*functions, repeats: int) -> list[float]:
    """Median seconds of each, called in turn; the first call of each is not counted."""
    seconds = [[] for _ in functions]
    for repeat in range(repeats + 1):
        for function, found in zip(functions, seconds, strict=True):
            began = time.perf_counter()
            jax.block_until_ready(function())
            if repeat:
                found.append(time.perf_counter() - began)
    return [statistics.median(found) for found in seconds]


if __name__ == "__main__":
    main()
