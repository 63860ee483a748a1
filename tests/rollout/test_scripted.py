"""Demonstrations: valid trajectories, made deterministically by the same episode code."""

import asyncio

import numpy as np

from configs import common
from jaxrl_single import types, wire
from jaxrl_single.envs import table
from jaxrl_single.rollout import episode, scheduler, scripted

SECTION = common.base().env.to_dict()
SPEC = table.get("calculator")
CHAT = SPEC.make_chat()
LIMITS = episode.Limits(
    max_turns=SECTION["max_turns"],
    max_turn_tokens=SECTION["max_turn_tokens"],
    max_tokens=SECTION["max_tokens"],
)


def _demonstrations(count, *, mistake_rate, seed=0, max_in_flight=8):
    tasks = SPEC.make_tasks(SECTION, "train", 0)
    return _play([tasks[i] for i in range(count)], mistake_rate, seed, max_in_flight)


def _play(tasks, mistake_rate, seed=0, max_in_flight=8):
    def client_for(ticket):
        rng = np.random.default_rng([seed, ticket.number])
        script = SPEC.make_script(SECTION)(ticket.task, mistake_rate=mistake_rate, rng=rng)
        return scripted.ScriptedClient(script, CHAT)

    worker = scheduler.Scheduler(
        sink=lambda trajectory: None,
        make_env=SPEC.make_env(SECTION),
        client_for=client_for,
        chat=CHAT,
        limits=LIMITS,
        max_in_flight=max_in_flight,
        source="script",
    )
    tickets = [types.Ticket("run", number, 0, task) for number, task in enumerate(tasks)]
    return asyncio.run(worker.drain(tickets))


def test_right_demonstrations_succeed_and_are_marked_as_scripted():
    for number, trajectory in enumerate(_demonstrations(40, mistake_rate=0.0)):
        types.validate(trajectory)
        assert trajectory.error is None
        assert trajectory.ticket == number
        assert trajectory.source == "script"
        assert trajectory.success
        actions = trajectory.action_mask
        assert (trajectory.policy_versions[actions] == types.NOT_SAMPLED).all()
        assert (trajectory.rollout_logprobs == 0).all()
        assert trajectory.num_actions >= 14


def test_actions_are_what_the_mask_says():
    (trajectory,) = _demonstrations(1, mistake_rate=0.0)
    turns = [
        CHAT.action_text(trajectory.tokens[trajectory.action_mask & (trajectory.turn_ids == turn)])
        for turn in range(3)
    ]
    assert turns == [m["content"] for m in trajectory.messages if m["role"] == "assistant"]


def test_mistakes_are_valid_and_repeatable():
    first = _demonstrations(60, mistake_rate=0.4)
    for trajectory in first:
        types.validate(trajectory)
        assert trajectory.error is None
        assert trajectory.num_tokens <= SECTION["max_tokens"]
    success = np.mean([trajectory.success for trajectory in first])
    assert 0.1 < success < 0.6
    again = _demonstrations(60, mistake_rate=0.4, max_in_flight=60)
    other = _demonstrations(60, mistake_rate=0.4, seed=1)
    rows = [[t.tokens.tolist() for t in batch] for batch in (first, again, other)]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def test_an_action_longer_than_the_budget_is_cut():
    class Talkative:
        async def act(self, observation):
            return "<call>123456+123456"

    async def generate():
        client = scripted.ScriptedClient(Talkative(), CHAT)
        prompt = CHAT.prompt("1+2")
        return await client.generate(wire.Request("s", 0, 0, 0, prompt, 5, CHAT.stop_token_ids))

    answer = asyncio.run(generate())
    assert answer.finish_reason == "length"
    assert answer.tokens == CHAT.action_ids("<call>123456+123456")[:5]
    assert len(answer.logprobs) == len(answer.policy_versions) == 5


def test_the_script_hears_each_observation_once():
    class Listener:
        def __init__(self):
            self.heard = []

        async def act(self, observation):
            self.heard.append(observation)
            return ["<call>37+58", "37", "<answer>4370"][len(self.heard) - 1]

    listener = Listener()
    ticket = types.Ticket("run", 0, 0, types.Task("t", "(37+58)*46", "4370"))
    client = scripted.ScriptedClient(listener, CHAT)
    env = SPEC.make_env(SECTION)()
    trajectory = asyncio.run(
        episode.run_episode(ticket, env, client, CHAT, LIMITS, source="script")
    )
    assert listener.heard == ["(37+58)*46", "95", "error"]
    assert trajectory.success


def test_a_task_that_the_script_cannot_play_is_an_error_trajectory():
    (trajectory,) = _play([types.Task("t", "1+2+", "3")], 0.0)
    assert trajectory.error.kind == "sampler"
    assert "'1+2+' ends where a number" in trajectory.error.message
    assert trajectory.source == "script"
