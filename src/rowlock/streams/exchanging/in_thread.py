"""Runs computations in a thread, so that the event loop is free meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from rowlock.clock import is_real
from rowlock.daemon_threads import DaemonThreads

T = TypeVar("T")


def begun_in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work`, which may hang in code of the host, in a thread that the process does not wait
    for; on virtual time, where threads take none, here.
    """
    loop = asyncio.get_running_loop()
    if is_real():
        thread = DaemonThreads(1, name="rowlock flow")
        return loop.run_in_executor(thread, copy_context().run, work)
    done: asyncio.Future[T] = loop.create_future()
    done.set_result(work())
    return done


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` as `begun_in_thread` does, and return its result."""
    return await begun_in_thread(work)
