"""Tests of attempts that are ended: before they begin, by their worker, in a thread."""

from __future__ import annotations

import asyncio
import threading

from rowlock.pipelines.attempt import Attempt, Deadlines, Ended, Result, host_call
from rowlock.testing import virtual_time

from ..host import HANG_S_MAX
from .scenes import hang, turns
from .test_attempt import THREADS, attempt_of


@virtual_time
async def test_an_attempt_ended_before_it_began_calls_nothing() -> None:
    """Work would begin on a row whose lease is already lost."""
    called: list[int] = []

    async def process() -> None:
        called.append(1)

    attempt = attempt_of(process)
    attempt.end(Ended.LEASE_LOST)
    assert await attempt.run() is Ended.LEASE_LOST
    assert called == []
    assert not attempt.is_running


@virtual_time
async def test_an_attempt_that_is_ended_before_its_first_step() -> None:
    """The worker would wait for the whole grace for a call that never began."""
    called: list[int] = []

    async def process() -> None:
        called.append(1)

    attempt, began_at = attempt_of(process), asyncio.get_running_loop().time()
    running = asyncio.create_task(attempt.run())
    await asyncio.sleep(0)
    attempt.end(Ended.INTERRUPTED)
    assert await running is Ended.INTERRUPTED
    assert called == []
    assert asyncio.get_running_loop().time() == began_at


@virtual_time
async def test_an_attempt_leaves_nothing_behind() -> None:
    """Each call ever made would stay in memory for as long as it might have taken."""
    deadlines = Deadlines(3600)
    for function in (turns, hang):
        attempt = Attempt(host_call(function, threads=THREADS), deadlines=deadlines, grace_s=1)
        asyncio.get_running_loop().call_later(1, attempt.end, Ended.INTERRUPTED)
        await attempt.run()
    assert len(deadlines) == 0


@virtual_time
async def test_a_cancelled_worker_cancels_the_call() -> None:
    """Host code would go on for a worker that is no longer there."""
    cancelled: list[int] = []

    async def process() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    worker = asyncio.create_task(attempt_of(process).run())
    await turns()
    worker.cancel()
    await asyncio.wait({worker})
    await turns()
    assert worker.cancelled()
    assert cancelled == [1]


async def test_a_thread_that_is_ended_is_left_behind_after_the_grace() -> None:
    """A blocking call without an end would keep its worker for ever, or nobody would know that
    it still runs.
    """
    go_on, returned, started = threading.Event(), threading.Event(), threading.Event()

    def process() -> str:
        started.set()
        go_on.wait(HANG_S_MAX)
        returned.set()
        return "too late"

    loop = asyncio.get_running_loop()
    attempt = attempt_of(process, grace_s=0)
    running = asyncio.create_task(attempt.run())
    try:
        await asyncio.to_thread(started.wait, HANG_S_MAX)
        loop.call_soon(attempt.end, Ended.LEASE_LOST)
        assert await running is Ended.ABANDONED
        assert not returned.is_set()
        assert attempt.is_running
    finally:
        go_on.set()
    await asyncio.to_thread(returned.wait, HANG_S_MAX)
    await turns()
    assert not attempt.is_running


@virtual_time
async def test_a_late_end_by_our_cancellation_is_no_error_of_the_host() -> None:
    """After an abandoned call that ends by the cancellation that it was given, the log does not
    blame the host.
    """
    go_on = asyncio.Event()

    async def process() -> None:
        try:
            await hang()
        finally:
            await go_on.wait()

    late: list[Result] = []
    attempt = attempt_of(process, grace_s=1)
    running = asyncio.create_task(attempt.run())
    await turns()
    attempt.end(Ended.INTERRUPTED)
    assert await running is Ended.ABANDONED
    attempt.on_late_result(late.append)
    go_on.set()
    await turns()
    assert late == [Ended.ABANDONED]
