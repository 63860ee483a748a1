"""Episodes on the real engine with a random policy: what a run records, without training."""

import asyncio
import dataclasses

import jax
import numpy as np
import pytest

from configs import common
from jaxrl_single import store, types
from jaxrl_single.data import packing, token_batch
from jaxrl_single.envs import table
from jaxrl_single.models import api, sizes
from jaxrl_single.rollout import episode, scheduler
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler import local_client
from jaxrl_single.trainer import forward

SECTION = {**common.base().env.to_dict(), "max_turns": 3, "max_turn_tokens": 6, "max_tokens": 40}
SPEC = table.get("calculator")
CHAT = SPEC.make_chat()
LIMITS = episode.Limits(max_turns=3, max_turn_tokens=6, max_tokens=40)
VERSION = 5


@pytest.fixture(scope="module")
def policy_and_params():
    policy = api.build_policy(sizes.get("tiny", vocab_size=CHAT.vocab_size))
    return policy, policy.init(jax.random.key(0))


def _tickets():
    tasks = SPEC.make_tasks(SECTION, "train", 0)
    return [types.Ticket("run", n, 0, tasks[n], temperature=1.0, group_id=n) for n in range(12)]


def _drain(policy_and_params, batch, *, max_in_flight, record=types.RECORD_NOTHING):
    engine = engine_lib.Engine(
        *policy_and_params,
        VERSION,
        num_slots=4,
        cache_length=48,
        decode_chunk=3,
        page_size=16,
        prefill_pages=(2,),
        seed=0,
        record=record,
    )
    finished = []
    worker = scheduler.Scheduler(
        sink=finished.append,
        make_env=SPEC.make_env(SECTION),
        client_for=lambda client: sampler,
        chat=CHAT,
        limits=LIMITS,
        max_in_flight=max_in_flight,
    )
    sampler = local_client.InlineClient(engine)
    return asyncio.run(worker.drain(batch)), [trajectory.ticket for trajectory in finished]


def test_episodes_are_valid_repeatable_and_independent_of_their_company(
    policy_and_params, tmp_path
):
    batch = _tickets()
    first, order = _drain(policy_and_params, batch, max_in_flight=4)
    again, same_order = _drain(policy_and_params, batch, max_in_flight=4)
    alone, _ = _drain(policy_and_params, batch[3:5], max_in_flight=1)
    assert order == same_order
    for one, other in [*zip(first, again, strict=True), *zip(first[3:5], alone, strict=True)]:
        for name in types.TOKEN_FIELDS:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    kept = store.TrajectoryStore(tmp_path, "run")
    for trajectory in first:
        assert trajectory.error is None
        assert kept.write(trajectory)
        assert set(trajectory.policy_versions[trajectory.action_mask]) == {VERSION}
        assert trajectory.num_tokens <= LIMITS.max_tokens
        assert (trajectory.entropies[trajectory.action_mask] > 0).all()
        prompt = CHAT.prompt(trajectory.messages[0]["content"])
        assert trajectory.tokens[: len(prompt)].tolist() == prompt
    assert {t.finish_reasons[-1] for t in first} <= {"stop", "length"}
    assert any(len(t.finish_reasons) > 1 for t in first)
    assert len({t.tokens.tobytes() for t in first}) == len(first)


def test_what_the_sampler_records_is_what_the_trainer_computes(policy_and_params, tmp_path):
    """Engine, episode, file, packing and the trainer's forward pass: the same numbers."""
    policy, params = policy_and_params
    record = types.Record(num_aux=2, topk=3, full=True)
    tickets = [dataclasses.replace(ticket, temperature=0.8) for ticket in _tickets()[:6]]
    kept = store.TrajectoryStore(tmp_path, "run")
    for trajectory in _drain(policy_and_params, tickets, max_in_flight=4, record=record)[0]:
        assert kept.write(trajectory)
    batch = packing.pack(
        [kept.read(key) for key in kept.scan()],
        num_trajectories=8,
        row_length=80,
        rows_per_micro_batch=3,
        row_buckets=(3,),
        on_limit="terminal",
        recorded=record.widths(CHAT.vocab_size),
    )
    micro = token_batch.micro_batch(batch, 0)
    outputs = jax.jit(forward.policy_forward, static_argnums=0, static_argnames="chunk")(
        policy, params, micro, chunk=16
    )
    mask = micro.action_mask
    assert mask.sum() > 30
    for name, of_trainer, of_sampler in (
        ("tokens", outputs.logprobs, micro.rollout_logprobs),
        ("entropies", outputs.entropies, micro.entropies),
        ("aux", outputs.aux_logprobs, micro.aux_logprobs),
        ("topk", outputs.topk_logprobs, micro.topk_logprobs),
        ("full", outputs.full_logprobs, micro.full_logprobs),
    ):
        np.testing.assert_allclose(of_trainer[mask], of_sampler[mask], atol=2e-5, err_msg=name)
