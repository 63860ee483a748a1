"""The script: right without mistakes, wrong at the stated rate with them, and natural mistakes."""

import asyncio

import numpy as np
import pytest

from jaxrl_single import types
from jaxrl_single.envs import calculator, calculator_script, chat

TASKS = calculator.CalculatorTasks(
    "train", num_operations=2, num_digits=2, max_result=999_999, operators="+-*", seed=3
)


async def _episode(task, mistake_rate, seed, max_turns=12):
    rng = np.random.default_rng(seed)
    script = calculator_script.CalculatorScript(task, mistake_rate=mistake_rate, rng=rng)
    env = calculator.Calculator()
    observation, actions, observations = await env.reset(task, seed=0), [], []
    for _ in range(max_turns):
        actions.append(await script.act(observation))
        result = await env.step(actions[-1])
        observation = result.observation
        observations.append(observation)
        if result.terminated:
            break
    return actions, observations, result


def _plays(tasks, mistake_rate):
    """Plays the n-th task with seed n; returns actions, observations and last result of each."""

    async def play():
        return [await _episode(task, mistake_rate, seed) for seed, task in enumerate(tasks)]

    return asyncio.run(play())


def test_without_mistakes_it_plays_the_expression():
    task = types.Task("t", "2-3*(4+5)", "-25")
    ((actions, observations, result),) = _plays([task], 0.0)
    assert actions == ["<call>4+5", "<call>3*9", "<call>2-27", "<answer>-25"]
    assert observations == ["9", "27", "-25", ""]
    assert result.reward == 1.0


def test_without_mistakes_it_is_always_right():
    for actions, _, result in _plays([TASKS[i] for i in range(200)], 0.0):
        assert result.reward == 1.0
        assert len(actions) == 3


def test_same_seed_same_play_and_other_seed_other_mistakes():
    plays = [actions for actions, _, _ in _plays([TASKS[0]] * 20, 0.5)]
    assert plays == [actions for actions, _, _ in _plays([TASKS[0]] * 20, 0.5)]
    assert len({tuple(play) for play in plays}) > 10


def test_success_falls_with_the_mistake_rate():
    tasks = [TASKS[i] for i in range(400)]

    def success(rate):
        return np.mean([result.reward for _, _, result in _plays(tasks, rate)])

    quarter, half, always = success(0.25), success(0.5), success(1.0)
    # Each of three actions is right with 3/4, or is garbled and then repeated.
    assert 0.42 < quarter < 0.62
    assert 0.1 < half < 0.35
    assert always < 0.05


def test_after_an_error_the_action_is_repeated_correctly():
    repeated = 0
    for actions, observations, _ in _plays([TASKS[i] for i in range(300)], 0.6):
        for number, observation in enumerate(observations[:-1]):
            if observation == calculator.ERROR:
                repeated += 1
                assert observations[number + 1] != calculator.ERROR
                assert actions[number + 1].startswith(("<call>", "<answer>"))
    assert repeated > 50


def test_every_kind_of_mistake_occurs():
    task = types.Task("t", "(37+58)*46", "4370")
    kinds = set()
    for actions, observations, _ in _plays([task] * 400, 0.4):
        kinds |= {_kind_of_first_mistake(actions, observations)}
    assert kinds >= {
        "none",
        "wrong digit in a call",
        "wrong operator",
        "old number",
        "answer too early",
        "garbled call",
        "wrong digit in the answer",
        "old number as the answer",
    }


def _kind_of_first_mistake(actions, observations):
    right = ["<call>37+58", "<call>95*46", "<answer>4370"]
    for number, action in enumerate(actions):
        if number >= len(right) or action == right[number]:
            if number == 2 or number >= len(right):
                return "none"
            continue
        if observations[number] == calculator.ERROR:
            return "garbled call" if number < 2 else "garbled answer"
        if action.startswith("<answer>"):
            if number < 2:
                return "answer too early"
            same_length = len(action) == len(right[2])
            old = action.removeprefix("<answer>") in ("37", "58", "46", "95")
            return "old number as the answer" if old else same_length * "wrong digit in the answer"
        if action.translate(str.maketrans("-*+", "xxx")) == right[number].translate(
            str.maketrans("-*+", "xxx")
        ):
            return "wrong operator"
        if number == 1 and action in ("<call>37*46", "<call>58*46", "<call>46*46"):
            return "old number"
        return "wrong digit in a call"
    return "none"


def test_mistakes_are_in_the_language_and_fit_a_turn():
    language = chat.CharChat.build()
    longest = 0
    for actions, _, _ in _plays([TASKS[i] for i in range(300)], 1.0):
        for action in actions:
            longest = max(longest, len(language.action_ids(action)))
    assert longest <= 12  # env.max_turn_tokens


def test_a_slip_changes_exactly_one_digit():
    rng = np.random.default_rng(0)
    for number in ("7", "0", "95", "4370", "-21"):
        for _ in range(50):
            slipped = calculator_script._slip(number, rng)
            assert len(slipped) == len(number)
            assert sum(a != b for a, b in zip(slipped, number, strict=True)) == 1
            assert str(int(slipped)) == slipped


def test_wrong_arguments_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"mistake_rate is 1\.5"):
        calculator_script.CalculatorScript(TASKS[0], mistake_rate=1.5, rng=rng)
    with pytest.raises(ValueError, match="not an expression"):
        calculator_script.CalculatorScript(types.Task("t", "why?", ""), mistake_rate=0, rng=rng)
