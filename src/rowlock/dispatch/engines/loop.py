"""Attempts on the event loop itself: for work that waits for others most of the time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar

from rowlock.dispatch.engines.local import LocalEngine
from rowlock.dispatch.task import Event, Task
from rowlock.errors import ConfigurationError


class LoopEngine(LocalEngine):
    """Runs an ``async def`` handler on the event loop; it must not block it.

    Args:
        workers: how many attempts run at once.
        backpressure: how many each of them takes; one by default.
    """

    kind: ClassVar[str] = "loop"

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[Event, None]:
        """Run the task's handler and yield its events."""
        events: Any = task.handler(task)
        if not hasattr(events, "__anext__"):
            raise ConfigurationError("LoopEngine takes an `async def` handler with yield; use ThreadEngine for a `def`")
        async with aclosing(events) as stream:
            async for event in stream:
                yield event
