"""How long a page is waited for.

The one idea: a page ends its questions before its own time is over, and does not wait for one that
cannot be ended: a transaction on a connection that is silent is left to its own bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from rowlock.containment import contained_task
from rowlock.insight.asking.wanted_time import wanted_within

T = TypeVar("T")

ENDING_S: Final = 1.0
"""How much of a page's time is left for its questions to be ended, in seconds."""


async def made_within(page: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return what `page` gives.

    Raises:
        TimeoutError: it did not within `seconds`; it is cancelled then, and not waited for.
    """
    with wanted_within(seconds - ENDING_S):
        task = contained_task(page, name="rowlock: page")
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(_forget)
    if not task.done():
        raise TimeoutError
    return task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    # Retrieved: Python would log an error that nobody is left to see.
    if not task.cancelled():
        task.exception()
