"""The only file that asks the time.

Two clocks with two jobs. `monotonic` measures how long a holder may trust its lease: it is the
running event loop's clock, so a virtual-time loop moves it, and it does not jump when the host's
wall clock is set. `utc_now` stamps events and logs. Leases themselves are judged by the database's
clock, in SQL: see ``rows/database_time.py``.
"""

from __future__ import annotations

import asyncio
import time
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
