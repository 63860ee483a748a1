"""Judging in a process of its own: right scores, deadlines, and failures that are no verdict."""

import asyncio
import contextlib
import os
import signal

import pytest

from jaxrl_single import types
from jaxrl_single.envs import answer_checks, judge, reasoning_gym_tasks
from jaxrl_single.envs.sandbox import isolation
from tests.envs.sandbox import sandbox_lab

pytest.importorskip("math_verify", reason="needs the extra envs")


WALLS = isolation.choose("none")  # tests/envs/sandbox tests the others
EVALUATES = "def score(answer):\n    return float(eval(answer))"


@pytest.fixture(scope="module")
def math_check():
    check = answer_checks.MathCheck(isolation.choose("none"))
    yield check
    check.close()


@pytest.mark.parametrize(
    ("right", "given", "score"),
    [
        ("14", "14", 1.0),
        ("14", "14.0", 1.0),
        ("14", "15", 0.0),
        ("1/2", "0.5", 1.0),
        (r"\frac{1}{2}", "1/2", 1.0),
        (r"$\frac{1}{2}$", r"\boxed{\dfrac12}", 1.0),
        (r"2\sqrt{3}", r"\sqrt{12}", 1.0),
        ("x^2-1", "(x-1)(x+1)", 1.0),
        ("x^2-1", "x^2+1", 0.0),
        (r"\{1, 2\}", r"\{2, 1\}", 1.0),
        ("(1, 2)", "(2, 1)", 0.0),
        ("1,234", "1234", 1.0),
        ("14", "", 0.0),
        ("14", "no idea", 0.0),
        ("Paris", " paris", 1.0),
        ("Paris", "London", 0.0),
        ("Paris", "Pairs", 0.0),
        ("no", "on", 0.0),
        ("Tom and Ann", "Ann and Tom", 0.0),
        ("xy", "yx", 0.0),
        ("2xy", "2yx", 1.0),
    ],
)
def test_mathematics(math_check, right, given, score):
    assert asyncio.run(math_check(types.Task("t", "?", right), given)) == score


def test_answers_that_would_take_for_ever_are_wrong_and_the_next_one_is_judged():
    check = judge.Judge(
        "def score(answer):\n    while answer == 'hang': pass\n    return answer == 'right'",
        WALLS,
        timeout_s=0.5,
    )

    async def play():
        return [await check.score(answer) for answer in ("right", "hang", "right", "wrong")]

    assert asyncio.run(play()) == [1.0, 0.0, 1.0, 0.0]
    check.close()


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def score(answer): return 1 / 0", "ZeroDivisionError"),
        ("def score(answer): return 'good'", "could not convert string to float"),
        ("import no_such_package", "can't be started: error .*no_such_package"),
    ],
)
def test_failures_of_the_judge_are_no_verdict(source, complaint):
    check = judge.Judge(source, WALLS)
    with pytest.raises(judge.JudgeError, match=f"(?s){complaint}"):
        asyncio.run(check.score("1"))
    check.close()


@pytest.mark.parametrize(
    "answer",
    [
        "raise_an_error",
        "float('nan')",
        "1e39",
        "-1",
        "[print('7'), __import__('os')._exit(0)]",
        "__import__('sys').exit('x' * 10**6)",
        "(_ for _ in ()).throw(ValueError(chr(0xd800)))",
        "'['" + "+'['" * 500,
    ],
)
def test_an_answer_that_upsets_the_judge_is_wrong_and_no_error(answer):
    check = judge.Judge(EVALUATES, WALLS)
    assert asyncio.run(check.score_or_zero((answer,), ("0.5",))) == 0.0
    check.close()


def test_a_judge_that_fails_for_the_right_answer_too_is_an_error():
    check = judge.Judge(EVALUATES, WALLS)
    with pytest.raises(judge.JudgeError, match="right"):
        asyncio.run(check.score_or_zero(("wrong",), ("right",)))
    check.close()


def test_many_answers_at_once_are_told_apart():
    check = judge.Judge("def score(answer):\n    print('noise')\n    return answer / 64", WALLS)

    async def play():
        return await asyncio.gather(*(check.score(number) for number in range(16)))

    assert asyncio.run(play()) == [number / 64 for number in range(16)]
    check.close()


@pytest.mark.parametrize("kind", ["none", "namespaces"])
def test_an_answer_that_is_a_program_changes_no_other_verdict(kind, tmp_path):
    try:
        check = judge.Judge(EVALUATES, isolation.choose(kind))
    except isolation.NoIsolation as error:
        pytest.skip(str(error))
    attempts = [
        "globals().update(score=lambda answer: 1) or 0",
        "__import__('builtins').__dict__.update(float=lambda text: 1) or 0",
        "__import__('os')._exit(0)",
        "__import__('os').kill(__import__('os').getpid(), 9)",
        "[__import__('os').write(n, b'0' * 99) for n in range(3, 20)]",
        "open('/proc/%d/mem' % __import__('os').getppid(), 'r+b')",
    ]

    async def play():
        for attempt in attempts:
            with contextlib.suppress(judge.JudgeError):  # what it does to itself
                await check.score(attempt)
            assert await check.score("0.25") == 0.25

    asyncio.run(play())
    check.close()


def test_interpreters_that_died_while_they_waited_are_no_verdict():
    check = judge.Judge(EVALUATES, isolation.choose("none"))

    async def play():
        others = sandbox_lab.children()
        await asyncio.gather(check.score("1"), check.score("1"))
        for process in sandbox_lab.children() - others:
            os.kill(process, signal.SIGKILL)
        return await check.score("0.5")

    assert asyncio.run(play()) == 0.5
    check.close()


@pytest.mark.long
def test_datasets_judge_by_their_own_rules():
    pytest.importorskip("reasoning_gym", reason="needs the extra envs")
    options = {"min_numbers": 3, "max_numbers": 3, "size": 100}
    dataset = reasoning_gym_tasks.Dataset("countdown", options)
    task = reasoning_gym_tasks.ReasoningGymTasks("train", dataset, seed=0)[0]
    check = answer_checks.DatasetCheck("countdown", options, WALLS)

    async def play():
        assert await check(task, task.answer) == 1.0
        assert await check(task, f"({task.answer})") == 1.0  # another text of the same value
        assert await check(task, "1 + 1") < 1.0
        with pytest.raises(ValueError, match="not of the dataset 'countdown'"):
            await check(types.Task("t", "?", "1"), "1")

    asyncio.run(play())
    check.close()
