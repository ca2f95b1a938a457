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
from datetime import timedelta
from typing import Any, Final

from rowlock import PipelineItem

from ..host import HANG_S_MAX

LOCK_TIMEOUT: Final = timedelta(seconds=8)
"""So long that a starved machine renews in time, and so short that a test can wait for its end."""
BLOCKED_S_MAX: Final = 120.0
"""How long the loop may be blocked until a test gives up: far longer than what is waited for.
**Unit** seconds.
"""
LOOK_EVERY_S: Final = 0.02
SETTINGS: Final[dict[str, Any]] = {
    "workers_num": 2,
    "lock_timeout": LOCK_TIMEOUT,
    "heartbeat_trigger": 7,
    "min_processing_interval": 0,
    "fetch_delays": (0.1,),
}

OFTEN: Final = SETTINGS | {
    "lock_timeout": 60,
    "heartbeat_trigger": 59,
    "heartbeat_interval": 0.1,
    "renew_timeout": 0.5,
}
"""Leases that are renewed all the time, and that no machine which stands still loses."""


def block_until(condition: Callable[[], bool]) -> None:
    """Keep this thread, and the event loop in it, until the condition holds."""
    look = threading.Event()
    for _ in range(round(BLOCKED_S_MAX / LOOK_EVERY_S)):
        if condition():
            return
        look.wait(LOOK_EVERY_S)
    raise AssertionError("what the blocked loop waits for did not happen")


def outlasted(item: PipelineItem[Any], *, seconds: float) -> Callable[[], bool]:
    """Return whether the lease that `item` has now was renewed to so much later, as far as its
    holder has heard.
    """
    first = item.lock_expires_at
    return lambda: item.lock_expires_at >= first + timedelta(seconds=seconds)


async def until_so(condition: Callable[[], Any]) -> None:
    """Wait until the condition, which may be awaited, holds; without events, which two threads
    would tell.
    """
    async with asyncio.timeout(HANG_S_MAX):
        while not (await found if inspect.isawaitable(found := condition()) else found):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(LOOK_EVERY_S)


def heartbeat_threads() -> int:
    return sum(thread.name == "rowlock heartbeats" for thread in threading.enumerate())
