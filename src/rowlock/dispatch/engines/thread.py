"""Attempts in threads: for a plain ``def`` handler that blocks, and lets others run meanwhile.

A thread cannot be cancelled. When an attempt is, its handler is closed at its next ``yield``; until then its worker counts as busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from rowlock.dispatch.backpressure import Backpressure
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.dispatch.task import Event, Task
from rowlock.errors import ConfigurationError

THREADS_MAX = 1_000
"""Most threads of one engine."""


class ThreadEngine(LocalEngine):
    """Runs a ``def`` handler with ``yield`` in a thread.

    Args:
        workers: how many attempts run at once.
        backpressure: how many each of them takes; one by default.
    """

    kind: ClassVar[str] = "thread"

    def __init__(self, workers: int = 1, *, backpressure: Backpressure | None = None) -> None:
        super().__init__(workers, backpressure=backpressure)
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="rowlock handler")

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[Event, None]:
        """Run the task's handler and yield its events."""
        events = task.handler(task)
        if not isinstance(events, Iterator):
            raise ConfigurationError("ThreadEngine takes a `def` handler with yield; use LoopEngine for an `async def`")
        try:
            while (event := await self._in_thread(next, events, None)) is not None:
                yield event
        finally:
            await self._in_thread(_close, events)

    async def _in_thread(self, function: Any, *args: Any) -> Any:  # noqa: ANN401 - passed on
        """Call in a thread, and come back only when the thread has, also when cancelled."""
        call = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.wait({call})
            raise


def _close(events: Any) -> None:  # noqa: ANN401 - a generator, or an iterator that cannot be closed
    if hasattr(events, "close"):
        events.close()
