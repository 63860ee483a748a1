"""Calls of user code: what goes through, what is bounded, and what is said about it."""

import asyncio
import contextlib
import time

import pytest

from jaxrl_single.envs import user_code


def call(function, **bounds):
    return asyncio.run(user_code.run(function, name="Env.step", **bounds))


def test_it_gives_what_the_code_gives_and_raises_what_it_raises():
    async def good():
        await asyncio.sleep(0)
        return 7

    async def bad():
        await asyncio.sleep(0)
        raise KeyError("here")

    assert call(good) == 7
    with pytest.raises(KeyError, match="here"):
        call(bad)


@pytest.mark.parametrize("function", [lambda: 3, lambda: None])
def test_what_cannot_be_awaited_is_told(function):
    with pytest.raises(TypeError, match="define it with `async def`"):
        call(function)


def test_code_that_blocks_the_loop_is_interrupted():
    async def sleeps():
        time.sleep(100)

    async def spins():
        while True:
            with contextlib.suppress(Exception):
                sum(range(100))

    for function in (sleeps, spins):
        with pytest.raises(TimeoutError, match=r"Env\.step has blocked the event loop"):
            call(function, block_s=0.05)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_code_that_keeps_cancellations_is_left_behind(monkeypatch):
    monkeypatch.setattr(user_code, "_GRACE_S", 0.05)

    async def stays():
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(60)

    with pytest.raises(TimeoutError, match="has not ended within"):
        call(stays, limit_s=0.05)


def test_a_cancellation_cannot_be_answered_by_a_result_or_another_error():
    async def gives():
        try:
            await asyncio.sleep(60)
        except BaseException:
            return 1

    async def raises():
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            raise ValueError("something else") from error

    async def cancelled(function):
        task = asyncio.create_task(user_code.run(function, name="Env.step", limit_s=30.0))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for function in (gives, raises):
        asyncio.run(cancelled(function))


def test_cancelled_code_may_await_to_free_what_it_holds():
    freed = []

    async def frees():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            freed.append(True)

    with pytest.raises(TimeoutError, match="has not ended within"):
        call(frees, limit_s=0.05)
    assert freed == [True]


def test_timeouts_of_its_own_are_its_own():
    async def waits():
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "none in time"

    assert call(waits, limit_s=30.0) == "none in time"


def test_a_task_that_exits_does_not_end_the_loop():
    async def exits():
        raise SystemExit(3)

    async def main():
        user_code.contain_tasks()
        task = asyncio.create_task(exits())
        with pytest.raises(RuntimeError, match="a task raised SystemExit"):
            await task
        never_begun = asyncio.create_task(exits())
        never_begun.cancel()
        await asyncio.sleep(0)
        return "goes on"

    assert asyncio.run(main()) == "goes on"


def test_long_texts_lose_their_middle():
    assert user_code.shorten("abcdef", 6) == "abcdef"
    assert user_code.shorten("abcdefgh", 4) == "ab\n[4 characters left out]\ngh"


def test_an_exception_that_cannot_be_printed_is_described_all_the_same():
    class Unprintable(Exception):
        def __str__(self):
            raise SystemExit("not even its text")

    assert "Unprintable" in user_code.describe(Unprintable()).splitlines()[0]
    assert user_code.line(ValueError("\ud800")) == "ValueError: \\ud800"
