"""Episodes: exact arrays, facts and limits."""

import asyncio
import dataclasses

import numpy as np
import pytest
from episode_lab import CHAT, LIMITS, RIGHT, TASK, TICKET, Prepared, Watched, completion, run

from jaxrl_single import types, wire
from jaxrl_single.envs import base, calculator, chat
from jaxrl_single.rollout import episode


def test_arrays_of_a_whole_episode():
    client, env = Prepared(*RIGHT), Watched(calculator.Calculator())
    trajectory = run(client, env)
    parts = [
        (CHAT.prompt(TASK.question), False, 0, -1),
        (CHAT.action_ids(RIGHT[0]), True, 0, 3),
        (CHAT.observation("95"), False, 1, -1),
        (CHAT.action_ids(RIGHT[1]), True, 1, 4),
        (CHAT.observation("4370"), False, 2, -1),
        (CHAT.action_ids(RIGHT[2]), True, 2, 5),
    ]

    def column(value_of):
        return [value_of(part, place) for part in parts for place in range(len(part[0]))]

    assert trajectory.tokens.tolist() == column(lambda part, place: part[0][place])
    assert trajectory.action_mask.tolist() == column(lambda part, place: part[1])
    assert trajectory.turn_ids.tolist() == column(lambda part, place: part[2])
    assert trajectory.policy_versions.tolist() == column(lambda part, place: part[3])
    logprobs = column(lambda part, place: (-0.5 - 0.25 * place) * part[1])
    entropies = column(lambda part, place: 0.125 * place * part[1])
    np.testing.assert_array_equal(trajectory.rollout_logprobs, np.float32(logprobs))
    np.testing.assert_array_equal(trajectory.entropies, np.float32(entropies))
    assert trajectory.rewards.tolist() == [0.0] * (trajectory.num_tokens - 1) + [1.0]
    assert set(trajectory.segment_ids.tolist()) == {1}
    assert env.actions == list(RIGHT)
    assert trajectory.num_tokens == 45


def test_facts_of_a_whole_episode():
    env = Watched(calculator.Calculator())
    trajectory = run(Prepared(*RIGHT), env)
    assert (trajectory.reward, trajectory.success) == (1.0, True)
    assert (trajectory.terminated, trajectory.truncated) == (True, False)
    assert trajectory.finish_reasons == ("stop", "stop", "stop")
    for name in ("run_id", "attempt", "group_id", "split", "temperature", "purpose", "key"):
        assert getattr(trajectory, name) == getattr(TICKET, name)
    assert (trajectory.ticket, trajectory.task_id) == (12, TASK.id)
    assert (trajectory.env, trajectory.source, trajectory.error) == ("watched", "policy", None)
    assert [(m["role"], m["content"]) for m in trajectory.messages] == [
        ("user", TASK.question),
        ("assistant", RIGHT[0]),
        ("tool", "95"),
        ("assistant", RIGHT[1]),
        ("tool", "4370"),
        ("assistant", RIGHT[2]),
    ]
    assert set(trajectory.timings) == {"sampling", "environment", "total"}
    assert env.closed == 1


def test_requests_continue_the_recorded_tokens_exactly():
    client = Prepared(*RIGHT)
    tokens = run(client).tokens.tolist()
    for turn, request in enumerate(client.requests):
        assert request.tokens == tokens[: len(request.tokens)]
        assert (request.session, request.ticket, request.attempt) == (TICKET.key, 12, 1)
        assert (request.turn, request.temperature) == (turn, 0.7)
        assert request.stop_token_ids == CHAT.stop_token_ids
        assert request.max_new_tokens == 12
    assert client.requests[0].tokens is not client.requests[1].tokens


def test_sampled_ids_are_never_tokenised_again():
    """Two ids that spell the same text stay what they are, in the row and in the next turn."""

    class TwoSpellings(chat.CharChat):
        def action_text(self, token_ids):
            # Id 31 is another spelling of "<call>37": text cannot tell the two apart.
            return super().action_text(token_ids).replace("<unused6>", "<call>37")

    language = TwoSpellings(CHAT._tokenizer)
    sampled = [31, *CHAT.action_ids("+58")]
    assert language.action_text(sampled) == language.action_text(CHAT.action_ids(RIGHT[0]))
    count = len(sampled)
    first = wire.Completion(sampled, [-1.0] * count, [0.0] * count, [0] * count, "stop")
    client, env = Prepared(first, *RIGHT[1:]), Watched(calculator.Calculator())
    trajectory = asyncio.run(episode.run_episode(TICKET, env, client, language, LIMITS))
    assert env.actions[0] == RIGHT[0]
    prompt = CHAT.prompt(TASK.question)
    assert trajectory.tokens.tolist()[len(prompt) : len(prompt) + count] == sampled
    assert client.requests[1].tokens == prompt + sampled + CHAT.observation("95")


def test_error_observation_lets_the_episode_go_on():
    trajectory = run(Prepared("37+58", "<answer>1"))
    assert [m["content"] for m in trajectory.messages][1:3] == ["37+58", "error"]
    assert (trajectory.reward, trajectory.success, trajectory.terminated) == (0.0, False, True)


def test_turn_limit_truncates_after_the_last_observation():
    env = Watched(calculator.Calculator())
    limits = dataclasses.replace(LIMITS, max_turns=2)
    trajectory = run(Prepared(*RIGHT[:2]), env, limits=limits)
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert (trajectory.reward, trajectory.success) == (0.0, False)
    assert trajectory.finish_reasons == ("stop", "stop")
    assert trajectory.tokens.tolist()[-7:] == CHAT.observation("4370")
    assert env.actions == list(RIGHT[:2])


def test_an_action_cut_by_its_token_limit_does_not_reach_the_environment():
    env = Watched(calculator.Calculator())
    cut = completion("<answer>4370", version=9, finish_reason="length")
    trajectory = run(Prepared(RIGHT[0], cut), env)
    assert env.actions == [RIGHT[0]]
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert (trajectory.reward, trajectory.success) == (0.0, False)
    assert trajectory.finish_reasons == ("stop", "length")
    assert trajectory.tokens.tolist()[-5:] == cut.tokens
    assert trajectory.action_mask[-5:].all()


def test_cut_in_the_first_turn_is_no_success_where_the_environment_gives_verdicts():
    cut = completion("<call>37", finish_reason="length")
    assert run(Prepared(cut)).success is False
    silent = Watched(calculator.Calculator())
    silent.gives_success = False
    assert run(Prepared(cut), silent).success is None


@pytest.mark.parametrize("max_tokens", range(14, 46))
def test_token_limit_is_never_passed(max_tokens):
    """13 prompt tokens, actions of 7, 7 and 6, observations of 5 and 7: 45 in all."""

    class Obedient(Prepared):
        async def generate(self, request):
            answer = await super().generate(request)
            if len(answer.tokens) <= request.max_new_tokens:
                return answer
            kept = request.max_new_tokens
            lists = [answer.tokens, answer.logprobs, answer.entropies, answer.policy_versions]
            return wire.Completion(*(values[:kept] for values in lists), "length")

    client, env = Obedient(*RIGHT), Watched(calculator.Calculator())
    limits = dataclasses.replace(LIMITS, max_tokens=max_tokens)
    trajectory = run(client, env, limits=limits)
    assert trajectory.num_tokens <= max_tokens
    assert trajectory.terminated == (max_tokens == 45)
    assert trajectory.truncated == (max_tokens < 45)
    assert trajectory.reward == float(max_tokens == 45)
    whole_actions = sum(end <= max_tokens for end in (20, 32, 45))
    assert env.actions == list(RIGHT[:whole_actions])
    assert all(1 <= request.max_new_tokens <= 12 for request in client.requests)
    # An observation is recorded whole or not at all.
    ends_in_action = trajectory.action_mask[-1]
    observed = {20: 13 + 7 + 5, 32: 25 + 7 + 7}
    assert ends_in_action or trajectory.num_tokens in observed.values()


def test_sampler_context_limit_truncates():
    empty = wire.Completion([], [], [], [], "length")
    trajectory = run(Prepared(RIGHT[0], empty))
    assert (trajectory.truncated, trajectory.terminated) == (True, False)
    assert trajectory.finish_reasons == ("stop", "length")


def test_environment_may_cut_the_episode_itself():
    class Sandbox(calculator.Calculator):
        async def step(self, action):
            return base.StepResult("too late", 0.25, truncated=True)

    trajectory = run(Prepared(RIGHT[0]), Sandbox())
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.reward == 0.25


def test_rewards_lie_on_the_last_token_of_the_action_that_earned_them():
    class Generous(calculator.Calculator):
        async def step(self, action):
            result = await super().step(action)
            return dataclasses.replace(result, reward=result.reward + 0.5)

    trajectory = run(Prepared(*RIGHT), Generous())
    ends = np.flatnonzero(trajectory.rewards).tolist()
    assert ends == [19, 31, 44]
    assert trajectory.rewards[ends].tolist() == [0.5, 0.5, 1.5]
    assert trajectory.reward == 2.5
    np.testing.assert_array_equal(
        types.fold_rewards(trajectory.rewards, trajectory.action_mask), trajectory.rewards
    )
