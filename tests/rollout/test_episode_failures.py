"""Every failure of an episode is an error trajectory with its traceback."""

import asyncio
import dataclasses
import math

import pytest
from episode_lab import CHAT, LIMITS, RIGHT, TICKET, Prepared, Watched, completion, run

from jaxrl_single import types, wire
from jaxrl_single.envs import base, calculator
from jaxrl_single.rollout import episode


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


@pytest.mark.parametrize("where", ["reset", "step", "close"])
def test_an_environment_that_hangs_is_an_error_within_its_time(where):
    class Hanging(Watched):
        pass

    async def hang(self, *args, **options):
        await asyncio.Event().wait()

    setattr(Hanging, where, hang)
    limits = dataclasses.replace(LIMITS, env_s=0.05)
    trajectory = run(Prepared(*RIGHT), Hanging(calculator.Calculator()), limits=limits)
    assert trajectory.error.kind == "env"
    line = trajectory.error.message.splitlines()[0]
    assert line.startswith("TimeoutError: ")
    assert line.endswith("has not ended within 0.05 s (env.step_timeout_s)")


def test_a_timeout_of_the_environment_itself_keeps_its_words():
    env = Failing("step", TimeoutError("the database is slow"))
    trajectory = run(Prepared(*RIGHT), env, limits=dataclasses.replace(LIMITS, env_s=60.0))
    assert_error(trajectory, "env", "TimeoutError: the database is slow", "in step")


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


@pytest.mark.parametrize("name", [7, None, SystemExit(3)])
def test_a_name_that_is_no_text_is_the_environments_failure(name):
    class Named(calculator.Calculator):
        @property
        def name(self):
            if isinstance(name, BaseException):
                raise name
            return name

    trajectory = run(Prepared(*RIGHT), Named())
    assert trajectory.error.kind == "env"
    types.validate(trajectory)


@pytest.mark.parametrize("where", ["reset", "step", "close"])
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError(), StopIteration()]
)
def test_whatever_is_raised_anywhere_is_an_error_of_its_episode(where, error):
    trajectory = run(Prepared(*RIGHT), Failing(where, error))
    assert trajectory.error.kind == "env"
    assert type(error).__name__ in trajectory.error.message


@pytest.mark.parametrize("given", [None, 3, "text", {}, ("",), base.StepResult])
def test_a_result_that_is_none_is_the_environments_failure(given):
    class Odd(calculator.Calculator):
        async def step(self, action):
            return given

    trajectory = run(Prepared(RIGHT[0]), Odd())
    assert trajectory.error.kind == "env"
    assert "expected jaxrl_single.envs.base.StepResult" in trajectory.error.message


@pytest.mark.parametrize("observation", [None, 3, b"bytes", (), ("a", 3), [None]])
def test_an_observation_that_is_no_text_is_the_environments_failure(observation):
    class Odd(calculator.Calculator):
        async def step(self, action):
            return base.StepResult(observation)

    assert run(Prepared(RIGHT[0]), Odd()).error.kind == "env"
