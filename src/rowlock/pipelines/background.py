"""Short tasks of one pipeline that nobody waits for while it runs, and that must end before it
has stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from rowlock.containment import begin_task
from rowlock.logs import get_logger

logger = get_logger(__name__)


class BackgroundTasks:
    """Begins tasks, and keeps them until they have ended: the event loop itself keeps none that
    waits.

    Args:
        name: of the pipeline.
        check_ending: whether the event loop ends everything; then a cancelled task is no news.
    """

    def __init__(self, name: str, *, check_ending: Callable[[], bool]) -> None:
        self._name = name
        self._check_ending = check_ending
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def wait_for_one(self, timeout_s: float | None = None) -> None:
        """Wait until one of them has ended, for `timeout_s` at most; returns at once if there is
        none.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def begin(self, work: Coroutine[Any, Any, None], *, purpose: str) -> asyncio.Task[None]:
        """Run `work` without waiting for it; `drain` does. Whatever it raises is logged."""
        try:
            task = begin_task(self._contained(work, purpose), name=f"rowlock: {purpose}")
        except BaseException:
            work.close()
            raise
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, purpose))
        # One that was cancelled before its first step has not begun `work`, which Python would warn
        # of.
        task.add_done_callback(lambda _task: work.close())
        return task

    async def _contained(self, work: Coroutine[Any, Any, None], purpose: str) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # A SystemExit that left this task would end the whole event loop.
            logger.error(
                "%s: a background task failed: %s",
                self._name,
                purpose,
                extra={"pipeline": self._name, "purpose": purpose},
                exc_info=error,
            )

    def _ended(self, purpose: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() or self._check_ending():
            return
        text, extra = (
            "%s: a background task was cancelled from outside: %s",
            {"pipeline": self._name, "purpose": purpose},
        )
        logger.error(text, self._name, purpose, extra=extra)
