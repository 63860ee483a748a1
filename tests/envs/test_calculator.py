"""The calculator: what each action is answered by, and which questions are generated."""

import asyncio
import itertools

import pytest

from jaxrl_single import types
from jaxrl_single.envs import calculator, expression, splits

TASK = types.Task("t", "(37+58)*46", "4370")


def _steps(actions, **options):
    async def play():
        env = calculator.Calculator(**options)
        assert await env.reset(TASK, seed=0) == TASK.question
        results = [await env.step(action) for action in actions]
        await env.close()
        return results

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("<call>37+58", "95"),
        ("<call>95*46", "4370"),
        ("<call>12-58", "-46"),
        ("<call>-46-4", "-50"),
        ("<call>-46*-2", "92"),
        ("<call>5--3", "8"),
        ("<call>007+1", "8"),
    ],
)
def test_call_computes_one_operation(action, observation):
    (result,) = _steps([action])
    assert result.observation == observation
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)
    assert result.info == {"success": False}


@pytest.mark.parametrize(
    "action",
    [
        "",
        "37+58",
        "<call>",
        "<call>37",
        "<call>37+",
        "<call>37++58",
        "<call>(37+58)*46",
        "<call>37+58<call>",
        "<call>37+58\n",
        "x<call>37+58",
        "<call>37/58",
        "<call><answer>4370",
        "<call>\u0663+1",
        "<call>1234567890123+1",
        "<user><id 99>",
    ],
)
def test_what_the_tool_does_not_understand_is_an_error_and_the_episode_goes_on(action):
    error, call = _steps([action, "<call>37+58"])
    assert error.observation == calculator.ERROR
    assert not error.terminated
    assert call.observation == "95"


@pytest.mark.parametrize(
    ("answer", "success"),
    [("4370", True), (" 4370 ", True), ("4371", False), ("", False), ("4370<call>", False)],
)
def test_answer_ends_the_episode_and_is_judged(answer, success):
    (result,) = _steps(["<answer>" + answer])
    assert result.terminated
    assert result.reward == float(success)
    assert result.info == {"success": success}


def test_disabled_tool_only_ever_fails_but_answers_count():
    call, answer = _steps(["<call>37+58", "<answer>4370"], tool_enabled=False)
    assert call.observation == calculator.ERROR
    assert answer.reward == 1.0


def test_latency_is_slept_by_calls_only(monkeypatch):
    slept = []

    async def no_sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    _steps(["37", "<call>1+1", "<call>garbled", "<answer>1"], tool_latency_s=0.5)
    assert slept == [0.5, 0.5]
    _steps(["<call>1+1"])
    assert len(slept) == 2


def test_latency_spread_is_drawn_from_the_seed(monkeypatch):
    slept = []

    async def no_sleep(seconds):
        slept.append(seconds)

    async def play(seed):
        env = calculator.Calculator(tool_latency_s=2.0, tool_latency_spread=0.5)
        await env.reset(TASK, seed=seed)
        for _ in range(50):
            await env.step("<call>1+1")

    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    for seed in (1, 1, 2):
        asyncio.run(play(seed))
    first, again, other = slept[:50], slept[50:100], slept[100:]
    assert first == again != other
    assert all(1.0 <= seconds <= 3.0 for seconds in slept)
    assert min(slept) < 1.3
    assert max(slept) > 2.7


def _tasks(split="train", **changes):
    options = {"num_operations": 2, "num_digits": 2, "max_result": 999_999}
    options |= {"operators": "+-*", "seed": 0, **changes}
    return calculator.CalculatorTasks(split, **options)


def test_question_answer_and_id_belong_together():
    for index in range(300):
        task = _tasks()[index]
        assert task.id == f"calculator/train/{index}"
        assert task.answer == str(eval(task.question))
        first, second = expression.parse(task.question)
        assert (second.left_is_result, second.right_is_result) == (True, False)
        assert len(str(first.left)) == 2


def test_tasks_are_a_function_of_index_split_and_seed():
    assert [_tasks()[i] for i in range(20)] == [_tasks()[i] for i in range(20)]
    assert [_tasks()[i] for i in range(20)] != [_tasks(seed=1)[i] for i in range(20)]
    assert _tasks()[7].question == "(79*12)*19"  # a change here moves every published number


def test_no_question_is_in_both_splits_whatever_the_seeds():
    for options in ({"num_operations": 1, "num_digits": 1}, {}):
        train, held_out = (
            {_tasks(split, seed=seed, **options)[i].question for i in range(400) for seed in (0, 1)}
            for split in ("train", "eval")
        )
        assert len(train) > 50
        assert len(held_out) > 5
        assert not train & held_out


@pytest.mark.parametrize(
    ("num_operations", "num_digits", "operators"),
    list(itertools.product((1, 3, 6), (1, 3, 5), ("+-*", "*", "-", "+"))),
)
def test_results_stay_in_their_bounds(num_operations, num_digits, operators):
    tasks = _tasks(
        num_operations=num_operations,
        num_digits=num_digits,
        max_result=99_999,
        operators=operators,
    )
    for index in range(20):
        results = []
        operations = expression.parse(tasks[index].question)
        for operation in operations:
            left = results[operation.left] if operation.left_is_result else operation.left
            results.append(expression.apply(operation.operator, left, operation.right))
        assert len(operations) == num_operations
        assert {operation.operator for operation in operations} <= set(operators)
        assert all(0 <= result <= 99_999 for result in results)


def test_operands_have_their_digits_where_the_bounds_allow():
    operands = [
        operation.right for i in range(200) for operation in expression.parse(_tasks()[i].question)
    ]
    assert sum(10 <= operand <= 99 for operand in operands) > 0.97 * len(operands)
    assert all(operand <= 99 for operand in operands)


def test_all_operators_occur_about_equally():
    questions = "".join(_tasks(operators="+*")[i].question for i in range(300))
    assert questions.count("-") == 0
    assert 0.3 < questions.count("*") / (questions.count("+") + questions.count("*")) < 0.7


def test_access_is_random_and_bounded():
    tasks = _tasks("eval")
    assert len(tasks) == 100_000
    assert tasks[99_999].id == "calculator/eval/99999"
    for index in (-1, 100_000):
        with pytest.raises(IndexError):
            tasks[index]


def test_a_split_without_questions_is_an_error_and_not_an_endless_search(monkeypatch):
    monkeypatch.setattr(splits, "split_of", lambda question: "train")
    monkeypatch.setattr(calculator, "_MAX_DRAWS", 50)
    with pytest.raises(ValueError, match="no question of the eval split among 50 draws"):
        _tasks("eval")[0]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_operations": 0}, "num_operations is 0"),
        ({"num_digits": 0}, "num_digits is 0"),
        ({"num_digits": 9}, "num_digits is 9"),
        ({"operators": ""}, "operators is ''"),
        ({"operators": "+/"}, "non-empty choice of"),
        ({"split": "test"}, "split is 'test'"),
    ],
)
def test_wrong_distribution_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        _tasks(**changes)
