"""Tests of attempts at plain functions that are ended while their thread runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rowlock.pipelines.attempt import Attempt, Deadlines, Ended, host_call
from rowlock.tasks import DaemonThreads

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


def test_a_process_that_hangs_keeps_no_event_loop_from_ending() -> None:
    """A plain `process` that hangs is left behind in its thread when its event loop ends."""
    go_on, started, ends = threading.Event(), threading.Event(), list[Any]()

    def process() -> None:
        started.set()
        go_on.wait(HANG_S_MAX)

    async def main() -> None:
        call = host_call(process, threads=DaemonThreads(1, name="rowlock test"))
        attempt = Attempt(call, deadlines=Deadlines(100), grace_s=30)
        ends.append(asyncio.create_task(attempt.run_here(lambda: ends.append("left behind"))))
        await asyncio.to_thread(started.wait, HANG_S_MAX)

    host = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    host.start()
    host.join(HANG_S_MAX / 2)
    assert (host.is_alive(), ends[1:]) == (False, ["left behind"])
    go_on.set()


def test_a_call_that_hangs_keeps_no_interpreter_from_ending() -> None:
    """Code of the host runs on daemon threads: Python does not wait for a call that hangs."""
    program = (
        "import threading; from rowlock.tasks import DaemonThreads;"
        "DaemonThreads(1, name='x').submit(threading.Event().wait)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_S_MAX)
