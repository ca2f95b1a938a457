"""Tests of the host's loop as another thread sees it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from rowlock.pipelines import heartbeat_thread as loop_monitor
from rowlock.pipelines.heartbeat_thread import LoopMonitor
from rowlock.testing import virtual_time

from .scenes import turns
from .told import end_of_logging


@virtual_time
async def test_a_loop_that_turns_is_not_stalled() -> None:
    """A healthy host would be told of in the log, and its leases let go."""
    host = LoopMonitor()
    asking = asyncio.create_task(host.ask())
    await asyncio.sleep(60)
    assert (host.stalled_s, host.longest_stall_s) == (0.0, 0.0)
    asking.cancel()
    await asyncio.wait({asking})


@virtual_time
async def test_a_loop_that_stands_still_is_told_of_once(caplog: Any) -> None:
    """Nobody would know which line of whose code blocks the service, or the log would be full of
    it.
    """
    host = LoopMonitor()
    answers: list[Any] = []
    host.do = answers.append  # type: ignore[method-assign, assignment]
    asking = asyncio.create_task(host.ask())
    await asyncio.sleep(loop_monitor.TOLD_AFTER_S - 1)
    assert caplog.records == []
    await asyncio.sleep(60)
    end_of_logging()
    [told] = caplog.records
    assert told.rowlock_stalled_s == loop_monitor.TOLD_AFTER_S
    # Here the loop's thread is the one that asks.
    assert "heartbeat_thread.py" in told.rowlock_where
    assert len(answers) == 1
    assert host.stalled_s == 60 + loop_monitor.TOLD_AFTER_S - 1
    answers.pop()()
    assert host.stalled_s == 0.0
    await asyncio.sleep(60)
    end_of_logging()
    assert len(caplog.records) == 2, "the next block is told of again"
    asking.cancel()
    await asyncio.wait({asking})


async def test_what_is_to_be_done_is_done_on_the_loop() -> None:
    """Listeners of the host would be called in a thread that they do not know of."""
    host = LoopMonitor()
    done: list[int] = []
    host.do(lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()], "at once, here"
    await asyncio.to_thread(host.do, lambda: done.append(threading.get_ident()))
    await turns()
    assert done == [threading.get_ident()] * 2


async def test_a_loop_that_has_ended_does_nothing_more() -> None:
    """The other thread would die of a host that is gone."""

    async def seen() -> LoopMonitor:
        return LoopMonitor()

    def elsewhere() -> LoopMonitor:
        return asyncio.run(seen())

    host = await asyncio.to_thread(elsewhere)
    done: list[int] = []
    host.do(lambda: done.append(1))
    assert done == []
    assert "thread" in host.where()
