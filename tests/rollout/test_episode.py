"""Episodes: exact arrays, limits, and every failure as an error trajectory with its traceback.

The sampler is a list of prepared answers, so that each token, log-prob and version is known.
"""

import asyncio
import dataclasses
import math

import numpy as np
import pytest

from jaxrl_single import types, wire
from jaxrl_single.envs import base, calculator, chat
from jaxrl_single.rollout import episode

CHAT = chat.CharChat.build()
TASK = types.Task("calculator/train/0", "(37+58)*46", "4370")
TICKET = types.Ticket("run", 12, 1, TASK, temperature=0.7, group_id=11, purpose="rl")
LIMITS = episode.Limits(max_turns=5, max_turn_tokens=12, max_tokens=96)
RIGHT = ("<call>37+58", "<call>95*46", "<answer>4370")


class Prepared:
    """Answers turn k with the k-th prepared answer and notes all that it is asked."""

    def __init__(self, *answers, version=3):
        self._answers = list(answers)
        self._version = version
        self.requests = []
        self.released = []

    async def generate(self, request):
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, wire.Completion):
            return answer
        return completion(answer, version=self._version + request.turn)

    async def release(self, session):
        self.released.append(session)


def completion(text, *, version=0, finish_reason="stop"):
    ids = CHAT.action_ids(text)
    if finish_reason == "length":
        ids = ids[:-1]
    return wire.Completion(
        tokens=ids,
        logprobs=[-0.5 - 0.25 * place for place in range(len(ids))],
        entropies=[0.125 * place for place in range(len(ids))],
        policy_versions=[version] * len(ids),
        finish_reason=finish_reason,
    )


class Watched:
    """Wraps an environment; notes what it got and whether it was closed."""

    def __init__(self, env):
        self._env = env
        self.name = "watched"
        self.gives_success = getattr(env, "gives_success", False)
        self.seeds, self.actions, self.closed = [], [], 0

    async def reset(self, task, seed):
        self.seeds.append(seed)
        return await self._env.reset(task, seed)

    async def step(self, action):
        self.actions.append(action)
        return await self._env.step(action)

    async def close(self):
        self.closed += 1
        await self._env.close()


def run(client, env=None, *, limits=LIMITS, ticket=TICKET, source="policy"):
    env = env or Watched(calculator.Calculator())
    trajectory = asyncio.run(episode.run_episode(ticket, env, client, CHAT, limits, source=source))
    if trajectory.error is None:
        types.validate(trajectory)
    assert client.released == [ticket.key]
    return trajectory


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
    """B17: two ids that spell the same text stay what they are, in the row and in the next turn."""

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


class Failing(Watched):
    """Raises in the named method."""

    def __init__(self, where, error):
        super().__init__(calculator.Calculator())
        self._where, self._error = where, error

    async def reset(self, task, seed):
        question = await super().reset(task, seed)
        if self._where == "reset":
            raise self._error
        return question

    async def step(self, action):
        result = await super().step(action)
        if self._where == "step":
            raise self._error
        return result

    async def close(self):
        await super().close()
        if self._where == "close":
            raise self._error


def assert_error(trajectory, kind, line, place):
    types.validate(trajectory)
    assert trajectory.error.kind == kind
    assert trajectory.error.message.splitlines()[0] == line
    assert "Traceback (most recent call last)" in trajectory.error.message
    assert place in trajectory.error.message
    assert trajectory.reward is None
    assert trajectory.success is None
    assert not trajectory.terminated
    assert not trajectory.truncated


@pytest.mark.parametrize("where", ["reset", "step", "close"])
def test_failing_environment_is_an_error_and_is_closed(where):
    env = Failing(where, OSError("no space for sandbox"))
    trajectory = run(Prepared(*RIGHT), env)
    assert_error(trajectory, "env", "OSError: no space for sandbox", f"in {where}")
    assert env.closed == 1
    expected = {"reset": 0, "step": 20, "close": 45}
    assert trajectory.num_tokens == expected[where]  # what was recorded until then is kept


def test_failing_judgement_is_an_error_of_kind_reward():
    env = Failing("step", base.RewardError("verifier died"))
    line = "jaxrl_single.envs.base.RewardError: verifier died"
    assert_error(run(Prepared(*RIGHT), env), "reward", line, "in step")


@pytest.mark.parametrize("reward", [math.nan, math.inf, None, "1"])
def test_a_reward_that_is_no_finite_number_is_an_error_and_never_zero(reward):
    class Broken(calculator.Calculator):
        async def step(self, action):
            return base.StepResult("", reward, terminated=True)

    trajectory = run(Prepared(RIGHT[0]), Broken())
    assert trajectory.error.kind == "reward"
    assert f"turn 0: the environment's reward is {reward!r}" in trajectory.error.message


def test_failing_sampler_is_an_error_of_kind_sampler():
    env = Watched(calculator.Calculator())
    trajectory = run(Prepared(RIGHT[0], RuntimeError("engine died")), env)
    assert_error(trajectory, "sampler", "RuntimeError: engine died", "in generate")
    assert env.closed == 1
    assert trajectory.num_tokens == 13 + 7 + 5


def test_failing_release_is_an_error_and_the_environment_is_closed():
    class Stuck(Prepared):
        async def release(self, session):
            await super().release(session)
            raise RuntimeError("no such session")

    env = Watched(calculator.Calculator())
    trajectory = run(Stuck(*RIGHT), env)
    assert_error(trajectory, "sampler", "RuntimeError: no such session", "in release")
    assert env.closed == 1


def test_the_first_failure_is_the_one_that_is_told():
    env = Failing("close", OSError("second"))
    trajectory = run(Prepared(RuntimeError("first")), env)
    assert trajectory.error.kind == "sampler"
    assert trajectory.error.message.startswith("RuntimeError: first")


def _changed(**changes):
    return dataclasses.replace(completion(RIGHT[0]), **changes)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (_changed(logprobs=[-1.0]), "all must be equal"),
        (_changed(policy_versions=[]), "all must be equal"),
        (_changed(logprobs=[math.nan] * 7), "logprobs holds nan"),
        (_changed(logprobs=[-math.inf] * 7), "logprobs holds -inf"),
        (_changed(logprobs=[0.5] * 7), "logprobs holds 0.5"),
        (_changed(policy_versions=[-1] * 7), "policy_versions holds -1"),
        (_changed(finish_reason="cancelled"), "ended it as 'cancelled'"),
        (_changed(finish_reason="done"), "ended it as 'done'"),
        (_changed(tokens=[9] * 7), "the last token is [9], stop tokens are (6,)"),
        (wire.Completion([], [], [], [], "stop"), "the last token is []"),
        (completion("<call>123456+123456"), "at most max_new_tokens = 12"),
    ],
)
def test_an_answer_that_cannot_be_trained_is_the_samplers_error(answer, complaint):
    trajectory = run(Prepared(answer))
    assert trajectory.error.kind == "sampler"
    assert complaint in trajectory.error.message.splitlines()[0]
    assert trajectory.num_actions == 0


def test_rounding_above_zero_is_no_error():
    assert run(Prepared(_changed(logprobs=[5e-6] * 7), *RIGHT[1:])).error is None


def test_prompt_without_room_for_an_action_is_an_error_of_kind_limit():
    trajectory = run(Prepared(), limits=dataclasses.replace(LIMITS, max_tokens=13))
    assert trajectory.error.kind == "limit"
    assert "13 tokens and env.max_tokens is 13" in trajectory.error.message
    empty = wire.Completion([], [], [], [], "length")
    trajectory = run(Prepared(empty))
    assert trajectory.error.kind == "limit"
    assert "context has no room after the 13 tokens" in trajectory.error.message


def test_question_outside_the_language_is_an_error_that_names_the_character():
    ticket = dataclasses.replace(TICKET, task=types.Task("t", "what?", ""))
    trajectory = run(Prepared(), ticket=ticket)
    assert trajectory.error.kind == "env"
    assert "'w' at position 0 of 'what?'" in trajectory.error.message


def test_cancellation_goes_through_and_cleans_up():
    class Endless(Prepared):
        async def generate(self, request):
            await asyncio.Event().wait()

    env, client = Watched(calculator.Calculator()), Endless()

    async def cancel_soon():
        task = asyncio.create_task(episode.run_episode(TICKET, env, client, CHAT, LIMITS))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_soon())
    assert env.closed == 1
    assert client.released == [TICKET.key]


def test_a_future_that_somebody_else_cancelled_is_the_samplers_failure():
    trajectory = run(Prepared(asyncio.CancelledError("engine stopped")))
    assert trajectory.error.kind == "sampler"
    assert "engine stopped" in trajectory.error.message.splitlines()[0]


def test_environment_seed_is_fixed_by_ticket_and_attempt():
    seeds = {}
    for number, attempt in ((0, 0), (0, 1), (1, 0), (0, 0)):
        env = Watched(calculator.Calculator())
        ticket = dataclasses.replace(TICKET, number=number, attempt=attempt)
        run(Prepared(*RIGHT), env, ticket=ticket)
        seeds.setdefault((number, attempt), set()).add(env.seeds[0])
    assert [len(found) for found in seeds.values()] == [1, 1, 1]
    assert len(set.union(*seeds.values())) == 3


def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="max_turns is 0"):
        episode.Limits(max_turns=0, max_turn_tokens=1, max_tokens=1)
