"""Tests of attempts at plain functions that are ended while their thread runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rowlock.pipelines.host_code.call import Attempt, Ended, host_call
from rowlock.pipelines.host_code.deadlines import Deadlines

from ..host import HANG_S_MAX
from .scenes import turns

THREADS = ThreadPoolExecutor(2)


async def test_a_coroutine_out_of_a_thread_that_was_ended_is_not_begun() -> None:
    """It would never hear of the cancellation, and work on without a lease."""
    go_on, started, begun = threading.Event(), threading.Event(), list[str]()

    async def inner() -> None:
        begun.append("without a lease")

    def process() -> Any:
        started.set()
        go_on.wait(HANG_S_MAX)
        return inner()

    call = host_call(process, threads=THREADS)
    attempt = Attempt(call, deadlines=Deadlines(100), grace_s=30)
    running = asyncio.create_task(attempt.run())
    await asyncio.to_thread(started.wait, HANG_S_MAX)
    attempt.end(Ended.LEASE_LOST)
    await turns()
    go_on.set()
    assert await running is Ended.LEASE_LOST
    assert begun == []
