"""The parity gate on real episodes: sampler against trainer at equal weights (DESIGN §6)."""

import asyncio
import dataclasses

import jax
import numpy as np
import pytest

from configs import common
from jaxrl_single import types
from jaxrl_single.rollout import scheduler
from jaxrl_single.sampler import local_client
from jaxrl_single.stages import build, gate, sampler_process, warm_start
from jaxrl_single.stages import world as world_lib
from jaxrl_single.trainer import score


def make(size, temperature):
    config = common.base()
    common.shrink(config)
    config.model.size = size
    config.rollout.temperature = temperature
    world = world_lib.make(config)
    policy, _ = build.models(config, world.language.vocab_size)
    return config, world, policy


def episodes(config, world, engine, first):
    client = local_client.InlineClient(engine)
    runner = scheduler.Scheduler(
        sink=lambda trajectory: None,
        make_env=world.make_env,
        client_for=lambda ticket: client,
        chat=world.language,
        limits=world.limits,
        max_in_flight=8,
    )
    tickets = [
        types.Ticket(
            "run",
            first + i,
            0,
            world.train_tasks[i],
            split="eval",
            temperature=config.rollout.temperature,
        )
        for i in range(8)
    ]
    return asyncio.run(runner.drain(tickets))


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("size", [pytest.param("tiny", marks=pytest.mark.long), "tiny_moe"])
def test_gate_passes_before_and_after_a_swap_and_fails_on_other_weights(size, temperature):
    config, world, policy = make(size, temperature)
    first, second = (policy.init(jax.random.key(seed)) for seed in (0, 1))
    engine = sampler_process.make_engine(config, policy, first, 0)
    mismatch = score.make_mismatch(policy, chunk=warm_start.LOGPROB_CHUNK)
    pack = build.packer(config)

    def measured(params, found):
        return gate.measure(mismatch, params, found, pack, limit=8)

    before = episodes(config, world, engine, 0)
    metrics = measured(first, before)
    gate.check(metrics, config.gate, temperature=temperature)
    assert metrics["mismatch/tokens"] == sum(e.num_actions for e in before)

    engine.load_weights(1, second)
    after = episodes(config, world, engine, 100)
    assert {int(v) for e in after for v in e.policy_versions[e.action_mask]} == {1}
    gate.check(measured(second, after), config.gate, temperature=temperature)

    with pytest.raises(gate.GateFailed, match=r"disagree at equal weights.*gate\.max_difference"):
        gate.check(measured(first, after), config.gate, temperature=temperature)


def test_a_forgotten_temperature_is_caught():
    """Sampled at 0.5, scored as if at 1."""
    config, world, policy = make("tiny_moe", 0.5)
    params = policy.init(jax.random.key(0))
    engine = sampler_process.make_engine(config, policy, params, 0)
    found = episodes(config, world, engine, 0)
    mismatch = score.make_mismatch(policy, chunk=warm_start.LOGPROB_CHUNK)
    pack = build.packer(config)
    gate.check(gate.measure(mismatch, params, found, pack, limit=8), config.gate, temperature=0.5)
    for episode in found:
        episode.temperature = 1.0
    wrong = gate.measure(mismatch, params, found, pack, limit=8)
    with pytest.raises(gate.GateFailed):
        gate.check(wrong, config.gate, temperature=0.5)


@pytest.mark.parametrize("size", ["tiny_moe", pytest.param("tiny_glm", marks=pytest.mark.long)])
def test_replay_makes_up_for_a_router_that_chooses_otherwise(size):
    """Engine, episode, packing and the trainer's forward pass, with the sampler's experts."""
    config, world, policy = make(size, 1.0)
    config.sampler.record_experts = True
    params = policy.init(jax.random.key(0))
    record = build.evaluation_record(config)
    engine = sampler_process.make_engine(config, policy, params, 0, record=record)
    found = episodes(config, world, engine, 0)
    assert max(len(episode.finish_reasons) for episode in found) > 1
    for episode in found:
        read = (episode.expert_ids >= 0).all(axis=(1, 2))  # all that the last action follows
        last_action = np.flatnonzero(episode.action_mask)[-1]
        np.testing.assert_array_equal(read, np.arange(episode.num_tokens) < last_action)

    mismatch = score.make_mismatch(policy, chunk=warm_start.LOGPROB_CHUNK)
    replaying = build.packer(config, routing=build.routing(config, policy.config))

    def unknown(trajectories):
        batch = replaying(trajectories)
        nothing = np.full_like(batch.expert_ids, types.UNKNOWN_EXPERT)
        return dataclasses.replace(batch, expert_ids=nothing)

    packs = {"replayed": replaying, "own": unknown}

    def measured(params):
        return {
            name: gate.measure(mismatch, params, found, pack, limit=8)
            for name, pack in packs.items()
        }

    same = measured(params)
    gate.check(same["replayed"], config.gate, temperature=1.0)
    assert same["replayed"] == same["own"]  # bitwise: the trainer's router chooses the same

    router = params["layers"]["router"]
    kernel = router["kernel"]
    noise = 0.01 * jax.random.normal(jax.random.key(1), kernel.shape)
    layers = {**params["layers"], "router": {**router, "kernel": kernel + noise}}
    moved = measured({**params, "layers": layers})
    assert moved["own"]["mismatch/max"] > 5 * moved["replayed"]["mismatch/max"] > 0


def test_nothing_to_compare_does_not_pass():
    nothing = {"mismatch/max": 0.0, "mismatch/mean": 0.0, "mismatch/tokens": 0.0}
    with pytest.raises(gate.GateFailed, match=r"nothing to compare.*an error; one says NotFinite"):
        gate.check(nothing, common.base().gate, temperature=1.0, error="NotFinite")
    for name in ("mismatch/max", "mismatch/mean"):
        odd = nothing | {"mismatch/tokens": 3.0, name: np.nan}
        with pytest.raises(gate.GateFailed, match="trainer is nan: finite weights give logits"):
            gate.check(odd, common.base().gate, temperature=1.0)
