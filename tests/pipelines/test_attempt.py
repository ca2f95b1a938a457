"""One attempt: every way in which host code can end becomes a value."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rowlock.errors import ProcessCancelledError
from rowlock.pipelines.attempt import Attempt, Ended, Raised, Result, Returned, host_call
from rowlock.testing import virtual_time

from .scenes import hang, turns

THREADS = ThreadPoolExecutor(2)


def attempt_of(
    function: Callable[..., Any], *, timeout_s: float = 100.0, grace_s: float = 5.0
) -> Attempt:
    call = host_call(function, threads=THREADS)
    return Attempt(call, timeout_s=timeout_s, grace_s=grace_s)


class Stubborn:
    """Host code that ignores every cancellation until it is let go, and then returns a value.

    Attributes:
        cancelled_at: the loop's times of the cancellations.
    """

    def __init__(self) -> None:
        self.cancelled_at: list[float] = []
        self._let_go = asyncio.Event()

    def let_go(self) -> None:
        self._let_go.set()

    async def process(self) -> str:
        while not self._let_go.is_set():
            try:
                await self._let_go.wait()
            except asyncio.CancelledError:
                self.cancelled_at.append(asyncio.get_running_loop().time())
        return "at last"


# ---------------------------------------------------------------- by itself


@virtual_time
async def test_what_is_returned() -> None:
    """An outcome would be lost."""

    async def process() -> int:
        await asyncio.sleep(1)
        return 7

    assert await attempt_of(process).run() == Returned(7)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        StopIteration(1),
        StopAsyncIteration(),
        ExceptionGroup("several", [ValueError()]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("in_thread", [False, True], ids=["coroutine", "thread"])
async def test_every_exception_is_a_value(error: BaseException, in_thread: bool) -> None:
    """A worker would end silently."""

    async def process() -> None:
        raise error

    def process_in_thread() -> None:
        raise error

    result = await attempt_of(process_in_thread if in_thread else process).run()
    assert isinstance(result, Raised)
    if isinstance(error, StopIteration):  # a coroutine cannot let it out as it is
        assert isinstance(result.error, RuntimeError | StopIteration)
    else:
        assert result.error is error


@virtual_time
async def test_an_escaped_cancellation_of_the_hosts_own_is_a_value() -> None:
    """A subtask that the host cancelled itself would kill the worker that awaits it."""

    async def process() -> None:
        subtask = asyncio.create_task(hang())
        await asyncio.sleep(1)
        subtask.cancel()
        await subtask

    result = await attempt_of(process).run()
    assert isinstance(result, Raised)
    assert isinstance(result.error, ProcessCancelledError)


@virtual_time
async def test_what_came_before_anybody_asked_for_it_is_told_at_once() -> None:
    """A late result that comes in the moment in which its call is left behind would never be
    cleaned up after.
    """
    stubborn = Stubborn()
    attempt = attempt_of(stubborn.process, timeout_s=1, grace_s=1)
    assert await attempt.run() is Ended.ABANDONED
    stubborn.let_go()
    await turns()
    told: list[Result] = []
    attempt.on_late_result(told.append)
    assert told == [Returned("at last")]


# -------------------- plain functions: real threads, so on the real loop


async def test_a_plain_function_runs_in_a_thread() -> None:
    """Blocking code would block the loop, and with it every heartbeat."""
    threads: list[int] = []

    def process() -> str:
        threads.append(threading.get_ident())
        return "done"

    assert await attempt_of(process).run() == Returned("done")
    assert threads != [threading.get_ident()]


async def test_a_plain_function_may_return_a_coroutine() -> None:
    """A lambda or a decorated coroutine function would have its coroutine dropped unawaited."""

    async def inner() -> str:
        await asyncio.sleep(0)
        return "done"

    def process() -> Any:
        return inner()

    assert await attempt_of(process).run() == Returned("done")


async def test_threads_are_limited() -> None:
    """A pipeline would start as many threads as it has rows."""
    threads = ThreadPoolExecutor(1)
    running, most, lock = 0, 0, threading.Lock()

    def process() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    attempts = [
        Attempt(host_call(process, threads=threads), timeout_s=9, grace_s=9) for _ in range(5)
    ]
    assert await asyncio.gather(*(attempt.run() for attempt in attempts)) == [Returned(None)] * 5
    assert most == 1


# ---------------------------------------------------------------- ended by us


@virtual_time
async def test_a_call_that_is_done_is_not_timed_out_later() -> None:
    """A timer of an old attempt would hit something else, and hold memory."""
    assert await attempt_of(turns, timeout_s=60).run() == Returned(None)
    await asyncio.sleep(100)


@pytest.mark.parametrize(
    ("why", "result"),
    [
        (Ended.INTERRUPTED, Returned("cleaned up")),
        (Ended.TIMED_OUT, Returned("cleaned up")),
        (Ended.LEASE_LOST, Returned("cleaned up")),
    ],
)
def test_an_outcome_returned_in_spite_of_the_cancellation(why: Ended, result: Result) -> None:
    """What was finished at the last moment would be done again; or, with the lease lost, nobody
    would clean it up.
    """

    @virtual_time
    async def play() -> Result:
        async def process() -> str:
            try:
                await hang()
            except asyncio.CancelledError:
                await asyncio.sleep(1)
            return "cleaned up"

        attempt = attempt_of(process)
        asyncio.get_running_loop().call_later(1, attempt.end, why)
        return await attempt.run()

    assert play() == result


@virtual_time
async def test_an_error_during_the_clean_up_does_not_hide_why_it_ended() -> None:
    """An interrupted row would count a failed attempt."""

    async def process() -> None:
        try:
            await hang()
        finally:
            raise ValueError("in the clean-up")

    attempt = attempt_of(process)
    asyncio.get_running_loop().call_later(1, attempt.end, Ended.INTERRUPTED)
    assert await attempt.run() is Ended.INTERRUPTED


@virtual_time
async def test_a_lost_lease_outdoes_an_earlier_reason() -> None:
    """A timed-out call whose lease was lost meanwhile would count as a failed attempt of its
    holder.
    """
    stubborn = Stubborn()

    async def process() -> None:
        await stubborn.process()
        raise ValueError("in the end")

    attempt = attempt_of(process)
    loop = asyncio.get_running_loop()
    loop.call_later(1, attempt.end, Ended.TIMED_OUT)
    loop.call_later(2, attempt.end, Ended.LEASE_LOST)
    loop.call_later(3, attempt.end, Ended.INTERRUPTED)
    loop.call_later(4, stubborn.let_go)
    assert await attempt.run() is Ended.LEASE_LOST
    assert len(stubborn.cancelled_at) == 1


@virtual_time
async def test_a_call_that_cancels_its_own_task() -> None:
    """A host that cancels the current task would kill the worker."""

    async def process() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    result = await attempt_of(process).run()
    assert isinstance(result, Raised)
    assert isinstance(result.error, ProcessCancelledError)
