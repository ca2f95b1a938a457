"""What tests of blocked loops share: the host's code that blocks, and how to wait where two threads
tell events.

The time is the true one here, and nobody waits for it: the code that blocks goes on when what it
waits for has happened.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from rowlock import PipelineItem

from ..host import HANG_S_MAX

LOCK_TIMEOUT: Final = timedelta(seconds=5)
LOOK_EVERY_S: Final = 0.02
SETTINGS: Final[dict[str, Any]] = {
    "workers_num": 2,
    "lock_timeout": LOCK_TIMEOUT,
    "heartbeat_trigger": 4,
    "min_processing_interval": 0,
    "fetch_delays": (0.1,),
}


def block_until(condition: Callable[[], bool]) -> None:
    """Keep this thread, and the event loop in it, until the condition holds."""
    look = threading.Event()
    for _ in range(round(HANG_S_MAX / LOOK_EVERY_S)):
        if condition():
            return
        look.wait(LOOK_EVERY_S)
    raise AssertionError("what the blocked loop waits for did not happen")


def renewed_past(item: PipelineItem[Any], first: datetime, times: int) -> Callable[[], bool]:
    """Return whether the lease of `item` was renewed for so many times its length, as far as its
    holder has heard.
    """
    return lambda: item.lock_expires_at >= first + times * LOCK_TIMEOUT


async def until_so(condition: Callable[[], Any]) -> None:
    """Wait until the condition, which may be awaited, holds; without events, which two threads
    would tell.
    """
    async with asyncio.timeout(HANG_S_MAX):
        while not (await found if inspect.isawaitable(found := condition()) else found):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(LOOK_EVERY_S)


def heartbeat_threads() -> int:
    """Return how many threads renew leases in this process."""
    return sum(thread.name == "rowlock heartbeats" for thread in threading.enumerate())
