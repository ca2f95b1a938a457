"""The only file that asks the time.

Two clocks with two jobs. `monotonic` measures how long a holder may trust its lease: it is the
running event loop's clock, so a virtual-time loop moves it, and it does not jump when the host's
wall clock is set. `utc_now` stamps events and logs. Leases themselves are judged by the database's
clock, in SQL: see ``rows/database_time.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

REAL_WITHIN_S = 60.0
"""How far a loop's clock may be behind the process's own, in seconds: some read theirs once in a
turn, and turns may be long.
"""


def utc_now() -> datetime:
    """Return the host's wall clock as an aware UTC time. Never used for leases."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Return seconds of the running loop's clock, or of the process where no loop runs.

    Both are CLOCK_MONOTONIC on the loops of asyncio and uvloop, so the two agree.
    """
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


def is_real() -> bool:
    """Return whether the running loop's clock is the process's own: a test's loop may have one
    that is moved, and say so.
    """
    loop = asyncio.get_running_loop()
    return (
        not getattr(loop, "is_virtual", False)
        and abs(loop.time() - time.monotonic()) < REAL_WITHIN_S
    )


def ahead_of_monotonic() -> tuple[float, ...]:
    """Return by how much the clocks that go on while the machine sleeps are ahead of the
    monotonic one, in seconds.

    Two readings differ if the machine slept in between: by its own account, or by the wall clock
    alone if it is a virtual machine that was paused. They also differ if the wall clock was set.
    Nothing differs where a test moves the time.
    """
    if not is_real():
        return ()
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    asleep = time.time() if boot is None else time.clock_gettime(boot)
    now = time.monotonic()
    return asleep - now, time.time() - now


def stopwatch() -> Callable[[], float]:
    """Return a clock for busy time: the difference of two of its readings is what passed between
    them, in seconds.

    Any thread may read it, and all of them read one clock: that of the loop in which this was
    called where a test moves it, else the process's own. The process's own is read directly, since
    a loop that keeps the time of its iteration would show short calls as none.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return time.monotonic
    return time.monotonic if is_real() else loop.time


async def sleep(seconds: float) -> None:
    """Sleep for `seconds` of the running loop's clock."""
    await asyncio.sleep(seconds)


async def rest(woken: asyncio.Event, seconds: float | None) -> None:
    """Wait until `woken` is set from now on, or for `seconds` of the running loop's clock; None is
    no limit.

    What set it before does not count, so the caller's reason to rest must have been found in this
    very step of the loop.
    """
    woken.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()
