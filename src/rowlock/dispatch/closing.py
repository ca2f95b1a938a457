"""Closes attempts when their outcomes have been settled: until then their workers are held.

So no more rows are ever shown as running than workers are busy; and whoever finds a worker idle finds its last row settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

logger = logging.getLogger(__name__)


class Closing:
    """Closes attempts of one pipeline, each in a task of its own; as many at once as the pipeline has attempts.

    Args:
        then: called after each: there is room.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self, attempt: AsyncExitStack) -> None:
        """Close `attempt` from now on."""
        task = asyncio.create_task(self._close(attempt), name="rowlock: close an attempt")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self, attempt: AsyncExitStack) -> None:
        try:
            await attempt.aclose()
        except Exception:
            logger.exception("An attempt failed while it was closed")
        self._then()

    async def wait(self, timeout_s: float) -> None:
        """Wait until all are closed, for so long at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
