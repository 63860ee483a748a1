"""Segments on the real engine: what it says of a rewritten context is what the trainer computes."""

import asyncio
import dataclasses

import jax
import numpy as np
import pytest
from chat_lab import make_chat

from jaxrl_single import types
from jaxrl_single.data import packing, token_batch
from jaxrl_single.envs import base
from jaxrl_single.models import api, sizes
from jaxrl_single.rollout import episode
from jaxrl_single.sampler import engine as engine_lib
from jaxrl_single.sampler import local_client
from jaxrl_single.trainer import forward

SAID = ("<think>\nhm\n</think>\n\nthe mat", "yes", "<think>\nso\n</think>\n\nno", "the cat")
ASKED = ("why?", "really?", "who?")
LIMITS = episode.Limits(max_turns=4, max_turn_tokens=64, max_tokens=256)
LANGUAGE = make_chat("thinks")


class Forced:
    """The engine's client, with the actions that it shall take; the engine says how likely."""

    def __init__(self, engine):
        self._client = local_client.InlineClient(engine)
        self.cached = []

    async def generate(self, request):
        action = tuple(LANGUAGE.action_ids(SAID[request.turn]))
        forced = dataclasses.replace(request, forced_tokens=action, max_new_tokens=len(action))
        answer = await self._client.generate(forced)
        self.cached.append(answer.num_cached_tokens)
        return answer

    async def release(self, session):
        await self._client.release(session)


class Asking:
    def __init__(self):
        self._questions = list(ASKED)

    async def reset(self, task, seed):
        return task.question

    async def step(self, action):
        if self._questions:
            return base.StepResult(self._questions.pop(0), role="user")
        return base.StepResult("", 1.0, terminated=True)

    async def close(self):
        pass


@pytest.mark.parametrize(
    ("size", "prefix_cache"),
    [("tiny", "prompts"), pytest.param("tiny_moe", "off", marks=pytest.mark.long)],
)
def test_a_session_goes_on_in_a_context_that_does_not_extend_the_last(size, prefix_cache):
    policy = api.build_policy(sizes.get(size, vocab_size=304))
    params = policy.init(jax.random.key(0))
    engine = engine_lib.Engine(
        policy,
        params,
        5,
        num_slots=2,
        cache_length=256,
        decode_chunk=8,
        page_size=16,
        prefill_pages=(4,),
        prefix_cache=prefix_cache,
        seed=0,
    )
    client = Forced(engine)
    ticket = types.Ticket("run", 0, 0, types.Task("t", "the sum?", ""))
    trajectory = asyncio.run(episode.run_episode(ticket, Asking(), client, LANGUAGE, LIMITS))
    assert trajectory.error is None
    types.validate(trajectory)
    assert trajectory.finish_reasons == ("stop",) * 4
    # The second and the fourth action are no thoughts that a later question would hide.
    assert np.unique(trajectory.segment_ids).tolist() == [1, 2, 3]
    turns = trajectory.turn_ids[trajectory.segment_ids == 2]
    assert np.unique(turns).tolist() == [1, 2]
    assert client.cached[2] > client.cached[1]  # within a segment the cache of the session counts
    batch = packing.pack(
        [trajectory],
        num_trajectories=1,
        row_length=trajectory.num_tokens + 8,
        rows_per_micro_batch=1,
        row_buckets=(1,),
        on_limit="terminal",
    )
    micro = token_batch.micro_batch(batch, 0)
    outputs = jax.jit(forward.policy_forward, static_argnums=0, static_argnames="chunk")(
        policy, params, micro, chunk=16
    )
    mask = micro.action_mask
    assert mask.sum() == sum(len(LANGUAGE.action_ids(text)) for text in SAID)
    np.testing.assert_allclose(outputs.logprobs[mask], micro.rollout_logprobs[mask], atol=2e-5)
    assert len(np.unique(micro.rollout_logprobs[mask])) > 30
